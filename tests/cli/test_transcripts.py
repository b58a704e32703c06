"""Runs the transcripts beside this file as a user would, in an empty folder with a few archives.

A case is comment lines, files (`name:` and its text, indented), commands (`$ …`, run by a shell), a line `----` and what came
of it: standard output, standard error (`! …`), the exit status unless it is 0, and each file (`+ …`) that was written,
removed (`- …`) or changed (`~ …`). Cases are separated by `====`. NNSCALER_GOLDEN=1 rewrites what came of them (`make golden`).
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from core_binary import core_binary

HERE = Path(__file__).parent
ARCHIVES = HERE.parent / "graph" / "data"
REWRITE = bool(os.environ.get("NNSCALER_GOLDEN"))
# What depends on the machine.
VARIES = [
    (re.compile(r"^(searched +)[\d.]+ ms$", re.M), r"\1… ms"),
    (re.compile(r'("search_seconds": )[\d.e-]+'), r"\1…"),
]


def split_cases(text):
    """(comment, input, output) of each case."""
    for case in text.removesuffix("\n").split("\n====\n"):
        lines = case.split("\n")
        bar = lines.index("----") if "----" in lines else len(lines)
        first = next((i for i, line in enumerate(lines) if not line.startswith("#")), bar)
        yield (
            "".join(line + "\n" for line in lines[:first]),
            "".join(line + "\n" for line in lines[first:bar]),
            "".join(line + "\n" for line in lines[bar + 1 :]),
        )


def snapshot(folder):
    return {
        str(path.relative_to(folder)) + "/" * path.is_dir(): path.is_file() and path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def run_case(text, folder):
    output = ""
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        if line.endswith(":"):
            content = []
            while lines and (lines[0].startswith("    ") or not lines[0]):
                content.append(lines.pop(0)[4:] + "\n")
            (folder / line[:-1]).write_text("".join(content))
            continue
        assert line.startswith("$ "), f"neither a file nor a command: {line}"
        before = snapshot(folder)
        ran = subprocess.run(
            ["bash", "-c", line[2:]],
            cwd=folder,
            env={"PATH": f"{folder.parent / 'bin'}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        after = snapshot(folder)
        output += ran.stdout.decode(errors="backslashreplace")
        if output and not output.endswith("\n"):
            output += "\\ no newline at the end\n"
        for error in ran.stderr.decode(errors="backslashreplace").splitlines():
            output += f"! {error}\n"
        if ran.returncode:
            output += f"exit {ran.returncode}\n"
        for path in sorted({*before, *after}):
            mark = "-" if path not in after else "+" if path not in before else "~"
            if before.get(path) != after.get(path) or mark != "~":
                output += f"{mark} {path}\n"
    for pattern, stand_in in VARIES:
        output = pattern.sub(stand_in, output)
    return output


@pytest.mark.parametrize("file", sorted(HERE.glob("*.txt")), ids=lambda file: file.stem)
def test_transcript(file, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nnscaler").symlink_to(core_binary())
    rewritten, differences = [], []
    for number, (comment, text, expected) in enumerate(split_cases(file.read_text())):
        folder = tmp_path / str(number)
        folder.mkdir()
        for archive in ("mlp", "layers", "extra"):
            shutil.copy(ARCHIVES / f"{archive}.pt2", folder)
        output = run_case(text, folder)
        if output != expected:
            differences.append(f"{comment}{text}---- expected\n{expected}---- came\n{output}")
        rewritten.append(f"{comment}{text}----\n{output}")
    if REWRITE:
        file.write_text("====\n".join(rewritten))
    else:
        assert not differences, "\n\n" + "\n".join(differences)
