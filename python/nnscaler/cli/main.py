"""The command `nnscaler`: verbs that need PyTorch are here, all others are the core's."""

from __future__ import annotations

import sys

from nnscaler.errors import InfeasibleError, InputError, NnscalerError

USAGE = """\
nnscaler: from a PyTorch model written for one device to a program for many

  export pkg.mod:make -o model.pt2           write a model's archive (needs PyTorch)
  verify pkg.mod:make --plan plan.json       run a plan beside the single-device model (needs PyTorch)

The verbs of the core (also: nnscaler-core --help):
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one verb; returns its exit status: 0, 1 for wrong input, 2 for wrong usage, 3 for no plan, 4 for a bug,
    130 when interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    verb = arguments[0] if arguments else "--help"
    try:
        if verb == "export":
            from nnscaler.cli import export

            return export.main(arguments[1:])
        if verb == "verify":
            from nnscaler.cli import verify

            return verify.main(arguments[1:])
        from nnscaler import _core

        if verb in ("--help", "-h", "help"):
            print(USAGE, end="", flush=True)
            return _core.main(["--help"])
        return _core.main(arguments)
    except NnscalerError as error:
        print(f"nnscaler: {error}", file=sys.stderr)
        return (
            1 if isinstance(error, InputError) else 3 if isinstance(error, InfeasibleError) else 4
        )
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
