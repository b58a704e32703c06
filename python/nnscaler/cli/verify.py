"""`nnscaler verify`: a plan beside the single-device model."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from nnscaler.cli.export import make_model
from nnscaler.errors import InputError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="nnscaler verify",
        description="Runs a plan with all its ranks on this machine and the model on one device, and compares loss, "
        "outputs, gradients, buffers, and parameters after some optimizer steps.",
        epilog="Example:\n  nnscaler verify mypkg.model:make --plan plan.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "maker", help="pkg.mod:make, a function that returns (module, args, kwargs)"
    )
    parser.add_argument("--plan", required=True, help="plan.json")
    parser.add_argument("--archive", help="the plan's archive, where it was moved")
    parser.add_argument(
        "--dtype",
        choices=["float64", "asis"],
        default="float64",
        help="float64 (default) computes in double precision; asis in the model's own",
    )
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps (default 3)")
    parser.add_argument("--tolerance", type=float, help="largest relative difference allowed")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    given = parser.parse_args(arguments)

    from nnscaler.verify import verify

    try:
        plan = Path(given.plan).read_text()
    except OSError as error:
        raise InputError(f"{given.plan}: cannot be read: {error.strerror}") from error
    module, args, kwargs = make_model(given.maker)
    report = verify(
        module,
        args,
        kwargs,
        plan,
        archive=given.archive,
        dtype=given.dtype,
        steps=given.steps,
        tolerance=given.tolerance,
    )
    if given.json:
        print(json.dumps({"equal": report.equal, **asdict(report)}, indent=1))
    else:
        print(report.text())
    return 0 if report.equal else 1
