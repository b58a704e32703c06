"""Writes docs/cli.md and docs/operators.md from what nnscaler-core prints; --check says whether they are current.

python tools/cli_reference.py build/release/nnscaler-core [--check]
"""

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def output(binary: str, *arguments: str) -> str:
    return subprocess.run([binary, *arguments], check=True, capture_output=True, text=True).stdout


def cli_reference(binary: str) -> str:
    """The help of each verb, in the order of the program's own."""
    overview = output(binary, "--help")
    verbs = re.findall(r"^  (\w+) +(.*)$", overview.split("Subcommands:\n")[1], re.M)
    text = """# Command line

Written by `tools/cli_reference.py` from the program's own help (`make docs`). `nnscaler` has these verbs and, in Python,
`export` and `verify`; `nnscaler-core` is the same without Python.

Results go to standard output, with `--json` one object; progress, warnings and errors to standard error, an error in one
line. Exit status: 0, 1 for wrong input, 2 for wrong usage, 3 when no plan exists, 4 for a bug of ours.
"""
    for verb, what in verbs:
        help_text = output(binary, verb, "--help")
        lines = [line.rstrip() for line in help_text.strip().splitlines()]
        body = "\n".join(
            lines[lines.index(next(line for line in lines if line.startswith("Usage:"))) :]
        )
        text += f"\n## {verb}\n\n{what[0].upper()}{what[1:]}.\n\n```\n{body}\n```\n"
    return text


def main() -> int:
    binary = sys.argv[1]
    stale = []
    for name, text in {
        "cli.md": cli_reference(binary),
        "operators.md": output(binary, "operators", "--markdown"),
    }.items():
        path = DOCS / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"not current: {', '.join(stale)}; run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
