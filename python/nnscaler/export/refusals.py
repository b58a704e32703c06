"""What export refuses, in words: one error that names the user's line and what to do."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import re
from collections.abc import Iterator

import torch
from torch.export import _trace as tracer

from nnscaler.errors import InputError
from nnscaler.export.source import Line, lines_of, nodes_at, shown_path

_WHOLE = "keep it whole in a function registered with nnscaler.register_op"
_UNKNOWN = "is not known while the model is exported"
_BRANCH = f"choose with torch.where, branch with torch.cond, or {_WHOLE}"
_ASSERT = f"check outside of forward or with torch._assert_async, or {_WHOLE}"
_COMPUTE = f"compute with operators on tensors instead, or {_WHOLE}"
_LOOP = (
    "loop over all there may be (for i, expert in enumerate(self.experts), each with its own rows, or each with all "
    f"rows and torch.where), or {_WHOLE}"
)

# Kinds of errors that say: a number was asked for, and there is none.
_NEEDS_VALUE = (
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)
_NEEDS_VALUE_TEXT = (
    ".numpy() is not supported",
    "Cannot access data pointer",
    "unsupported format string passed to FakeTensor",
    "Cannot convert meta tensor",
    "data-dependent",
)


def refusal(error: BaseException, module: torch.nn.Module) -> InputError:
    """The error to raise in the place of what the tracer raised; `cause` is the tracer's."""
    lines = list(lines_of(error))
    line = lines[0] if lines else None
    kinds = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    if line is not None and (
        kinds & set(_NEEDS_VALUE) or any(t in text for t in _NEEDS_VALUE_TEXT)
    ):
        message = f'{line}: "{line.text}" {_on_values(line)}'
    elif (
        "dynamic_shapes" in text
        or "ConstraintViolation" in type(error).__name__
        or _is_about_shapes(text)
    ):
        message = f"{forward_of(module)}: dynamic_shapes do not fit the model: {_constraints(text)}"
    elif line is not None:
        message = (
            f'{line}: "{line.text}" raised {type(error).__name__}: {_first_sentence(text)}; if the model runs as it is '
            f"on these arguments, {_WHOLE}"
        )
    else:
        message = (
            f"{forward_of(module)}: {type(module).__name__} cannot be exported: {type(error).__name__}: "
            f"{_first_sentence(text)}"
        )
    result = InputError(message)
    result.cause = error
    return result


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keeps the tracer from printing its graphs and stacks when it fails."""
    if debugging():
        yield
        return
    names = [n for n in logging.root.manager.loggerDict if n.split(".")[0] == "torch"]
    loggers = [logger for n in names if not (logger := logging.getLogger(n)).disabled]
    for logger in loggers:
        logger.disabled = True
    tracer.print = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del tracer.print
        for logger in loggers:
            logger.disabled = False


def debugging() -> bool:
    """Whether the tracer's own stack is asked for."""
    return os.environ.get("NNSCALER_DEBUG", "") not in ("", "0")


def forward_of(module: torch.nn.Module) -> str:
    code = getattr(type(module).forward, "__code__", None)
    if code is None:
        return type(module).__name__
    return f"{shown_path(code.co_filename)}:{code.co_firstlineno}"


def _on_values(line: Line) -> str:
    """What a line does with the values of a tensor, and what to do instead."""
    child: ast.AST | None = None
    for node in nodes_at(line):
        # Python puts what a statement's head does at the expression there or at the whole statement.
        if isinstance(node, (ast.If, ast.While, ast.IfExp)) and child in (None, node.test):
            return f"branches on the value of a tensor, which {_UNKNOWN}; {_BRANCH}"
        if isinstance(node, ast.Assert) and child in (None, node.test):
            return f"asserts something about a tensor's value, which {_UNKNOWN}; {_ASSERT}"
        if isinstance(node, (ast.For, ast.comprehension)) and child in (None, node.iter):
            return f"loops as often as a tensor's value says, which {_UNKNOWN}; {_LOOP}"
        if isinstance(node, ast.stmt):
            break
        child = node
    return f"needs the value of a tensor, which {_UNKNOWN}; {_COMPUTE}"


def _is_about_shapes(text: str) -> bool:
    return "Constraints violated" in text or "Suggested fixes" in text


def _constraints(text: str) -> str:
    found = re.findall(r"^\s*- (.*)", text, re.MULTILINE) or [_first_sentence(text)]
    return " ".join(found[0].split())


def _first_sentence(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return first.rstrip(".;:")
