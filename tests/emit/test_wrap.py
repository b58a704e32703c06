"""Holds the golden file of the printer's line breaks to `ruff format` itself."""

import ast
import subprocess
import sys
from pathlib import Path

SUITE = Path(__file__).parent / "wrap.txt"


def statements(lines: list[str]) -> list[list[str]]:
    """Lines of each statement: one begins where a line is not indented deeper and closes nothing."""
    found: list[list[str]] = []
    base = 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        closes = found and indent == base and line.lstrip()[0] in ")]}"
        if found and (indent > base or closes) and not complete(found[-1]):
            found[-1].append(line)
        else:
            found.append([line])
            base = indent
    return found


def complete(lines: list[str]) -> bool:
    try:
        ast.parse(snippet(lines))
    except SyntaxError:
        return False
    return True


def snippet(lines: list[str]) -> str:
    """The statement with what must stand around it."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    head = ["class C:", "    def f(self):"][: indent // 4]
    body = [" " * (indent + 4) + "pass"] if lines[-1].endswith(":") else []
    return "\n".join([*head, *lines, *body]) + "\n"


def test_line_breaks_are_those_of_ruff(tmp_path):
    cases = SUITE.read_text().split("\n====\n")
    texts = []
    for case in cases:
        given, _, expected = case.partition("\n----\n")
        inputs = [line for line in given.splitlines() if not line.startswith("#")]
        outputs = statements(expected.rstrip("\n").split("\n"))
        assert len(inputs) == len(outputs)
        for line, output in zip(inputs, outputs, strict=True):
            assert ast.dump(ast.parse(snippet([line]))) == ast.dump(ast.parse(snippet(output)))
            texts.append(snippet(output))
    file = tmp_path / "statements.py"
    file.write_text("\n\n".join(texts))
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", file]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
