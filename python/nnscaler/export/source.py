"""Where the user's code stands, and Python source for values."""

from __future__ import annotations

import ast
import functools
import linecache
import math
import os
import sysconfig
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch

_FOREIGN = tuple(
    os.path.join(path, "")
    for path in {
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(__file__)),
        os.path.join(sysconfig.get_paths()["purelib"], "torch"),
    }
)
_EXPORT = os.path.join(os.path.dirname(__file__), "program.py")
_STDLIB = os.path.join(sysconfig.get_paths()["stdlib"], "")


class Line(NamedTuple):
    """A line of the user's code. The columns, where known, are those of the running expression."""

    file: str
    number: int
    columns: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{shown_path(self.file)}:{self.number}"


def shown_path(file: str) -> str:
    """The path as messages show it: relative where it lies below the working directory."""
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith(os.pardir) else relative


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file is the user's, or of a library of models: not torch's, ours or Python's."""
    if file.startswith("<"):  # "<string>", "<frozen importlib._bootstrap>"
        return file.startswith(("<ipython-input", "<stdin"))
    path = os.path.abspath(file)
    if path.startswith(_FOREIGN):
        return False
    return not path.startswith(_STDLIB) or "-packages" + os.sep in path[len(_STDLIB) :]


def _line(frame: FrameType, number: int, instruction: int) -> Line:
    columns = None
    positions = getattr(frame.f_code, "co_positions", None)  # from Python 3.11 on
    if positions is not None and instruction >= 0:
        for index, position in enumerate(positions()):
            if index == instruction // 2:
                first, last, begin, end = position
                if first == last == number and begin is not None and end is not None:
                    columns = (begin, end)
                break
    return Line(frame.f_code.co_filename, number, columns)


def lines_of(error: BaseException) -> Iterator[Line]:
    """The user's lines that an error came through, innermost first.

    Errors that one was raised from are searched too: tracers wrap the first one.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        lines = []
        tb: TracebackType | None = current.__traceback__
        while tb is not None:
            if is_users(tb.tb_frame.f_code.co_filename):
                lines.append(_line(tb.tb_frame, tb.tb_lineno, tb.tb_lasti))
            tb = tb.tb_next
        yield from reversed(lines)
        current = current.__cause__ or current.__context__


def line_of_caller(frame: FrameType | None) -> Line | None:
    """The innermost line of the user among a frame and its callers, up to the call of export."""
    while frame is not None and frame.f_code.co_filename != _EXPORT:
        if is_users(frame.f_code.co_filename):
            return line_in(frame)
        frame = frame.f_back
    return None


def line_in(frame: FrameType) -> Line:
    """The line that a frame runs."""
    return _line(frame, frame.f_lineno, frame.f_lasti)


@functools.lru_cache(maxsize=8)
def _tree(file: str, _lines: int) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def nodes_at(line: Line) -> list[ast.AST]:
    """The syntax nodes around a line's expression, innermost first; empty without a source."""
    tree = _tree(line.file, len(linecache.getlines(line.file)))
    if tree is None:
        return []
    text = linecache.getline(line.file, line.number)
    begin, end = line.columns or (len(text) - len(text.lstrip()), len(text.rstrip()))
    if line.columns is None:
        begin = end = begin  # Without columns, whatever begins the line.

    def path_to(node: ast.AST) -> list[ast.AST]:
        """The nodes that hold the expression, from the innermost up to `node`."""
        if hasattr(node, "lineno"):
            first = (node.lineno, node.col_offset)
            last = (node.end_lineno, node.end_col_offset)
            if not (first <= (line.number, begin) and (line.number, end) <= last):
                return []
        for child in ast.iter_child_nodes(node):
            if path := path_to(child):
                return [*path, node]
        return [node] if hasattr(node, "lineno") else []

    return path_to(tree)


class NotALiteral(Exception):
    """A value that has no Python literal."""


def literal(value: Any) -> str:
    """Python source that makes a value again with nothing but `torch` imported.

    Raises:
        NotALiteral: for objects that have no such source.
    """
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes):
        return "..." if value is Ellipsis else repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if kind is complex:
        finite = math.isfinite(value.real) and math.isfinite(value.imag)
        return repr(value) if finite else f"complex({literal(value.real)}, {literal(value.imag)})"
    if kind in (torch.dtype, torch.layout, torch.memory_format):
        return str(value)
    if kind is torch.device:
        return f'torch.device("{value}")'
    if kind is slice:
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if kind is torch.Size:
        return f"torch.Size([{', '.join(map(literal, value))}])"
    if kind is tuple:
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if kind is list:
        return f"[{', '.join(map(literal, value))}]"
    if kind is dict:
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    raise NotALiteral(f"a {type_name(kind)}")


def type_name(cls: type) -> str:
    """Import path of a class; builtins by their bare name."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"
