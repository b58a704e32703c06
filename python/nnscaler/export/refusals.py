"""What export refuses, in words: one error that names the user's line and what to do."""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
import os
import re
from collections.abc import Iterator

import torch
from torch.export import _trace as tracer

from nnscaler.errors import InputError
from nnscaler.export.source import Line, is_users, lines_of, nodes_at, shown_path

_WHOLE = "keep it whole in a function registered with nnscaler.register_op"
_UNKNOWN = "is not known while the model is exported"
_BRANCH = f"choose with torch.where, branch with torch.cond, or {_WHOLE}"
_ASSERT = f"check outside of forward or with torch._assert_async, or {_WHOLE}"
_COMPUTE = f"compute with operators on tensors instead, or {_WHOLE}"
_LOOP = (
    "loop over all there may be (for i, expert in enumerate(self.experts), each with its own rows, or each with all "
    f"rows and torch.where), or {_WHOLE}"
)

_COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)

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
    elif shapes := _on_shapes(error):
        message = f"{forward_of(module)}: dynamic_shapes do not fit {type(module).__name__}.forward: {shapes}"
    elif line is not None:
        message = (
            f'{line}: "{line.text}" raised {type(error).__name__}: {first_line(error)}; if the model runs as it is '
            f"on these arguments, {_WHOLE}"
        )
    else:
        message = (
            f"{forward_of(module)}: {type(module).__name__} cannot be exported: {type(error).__name__}: "
            f"{first_line(error)}"
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


def refuse_transforms(graph_module: torch.fx.GraphModule) -> None:
    """Refuses function transforms such as vmap: the graph holds calls that only they understand."""
    for node in graph_module.graph.nodes:
        if str(getattr(node.target, "__module__", "")).startswith("torch._functorch"):
            found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
            lines = [Line(file, int(number)) for file, number in found if is_users(file)]
            where = f'{lines[-1]}: "{lines[-1].text}" ' if lines else ""
            raise InputError(
                f"{where}transforms a function (torch.vmap, torch.func), which cannot be exported; write it with "
                f"operators on batches, or {_WHOLE}"
            )


def debugging() -> bool:
    """Whether the tracer's own stack is asked for."""
    return os.environ.get("NNSCALER_DEBUG", "") not in ("", "0")


def forward_of(module: torch.nn.Module) -> str:
    """Where a module's forward is defined, for messages."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
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
        is_loop = isinstance(node, (ast.For, ast.comprehension)) and child in (None, node.iter)
        if is_loop or child is None and isinstance(node, _COMPREHENSIONS):
            return f"loops as often as a tensor's value says, which {_UNKNOWN}; {_LOOP}"
        if isinstance(node, ast.stmt):
            break
        child = node
    return f"needs the value of a tensor, which {_UNKNOWN}; {_COMPUTE}"


_SIZE = re.compile(r"L\['(\w+)'\](\S*?)\.size\(\)\[(\d+)\]")  # as torch calls a size of an argument


def _on_shapes(error: BaseException) -> str | None:
    """What is wrong with dynamic_shapes; None where an error is about something else."""
    text = _SIZE.sub(r"\1\2.shape[\3]", str(error))
    if fixed := re.search(r"You marked (.+?) as dynamic but .* constant \((\d+)\)", text):
        name, size = fixed.groups()
        if size in ("0", "1"):
            return f"{name} is {size} in the sample, which stands for no other size; give a sample with 2 or more"
        return (
            f"{name} is declared to vary, and the model works for {size} only; compute with the tensor's own shape "
            f"instead of {size}, or leave it out"
        )
    if bounds := re.search(
        r"Not all values of (.+?) in the specified range satisfy .* guard (.+)", text
    ):
        fixes = re.search(r"Suggested fixes:\n\s*(.+)", text)
        condition = re.sub(r" and \S+ <= IntInfinity\(\)", "", bounds[2]).rstrip(".")
        advice = f"declare {fixes[1].strip()}" if fixes else "declare its range"
        return f"{bounds[1]} may be any, and the model works where {condition} only; {advice}"
    if "dynamic_shapes" in text or "Constraints violated" in text:
        return first_line(error)
    if isinstance(error, IndexError) and not any(lines_of(error)):
        return "they name a dimension that an argument does not have"
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".;:") if lines else "no message"
