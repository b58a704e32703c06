"""Writes an exported program as a `.pt2` archive, without the weights."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._export.serde import serialize
from torch.export import ExportedProgram

from nnscaler.errors import InputError
from nnscaler.export.source import is_users
from nnscaler.export.tensors import valueless, without_value


def save(program: ExportedProgram, extra: dict[str, Any], path: Path) -> None:
    """Writes the archive, whole or not at all; the program is of no use afterwards."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no directory {path.parent}; make it first")
    for tensors in (program._state_dict, program._constants):
        for name, value in tensors.items():
            if isinstance(value, nn.Parameter) or (
                isinstance(value, torch.Tensor) and without_value(value)
            ):
                tensors[name] = valueless(value)
    program._example_inputs = None
    program._guards_code = []
    _shorten_traces(program)
    buffer = io.BytesIO()
    with _quickly(program):
        torch.export.save(program, buffer, extra_files={"nnscaler.json": json.dumps(extra)})
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(buffer.getvalue())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def _quickly(program: ExportedProgram) -> Iterator[None]:
    # Two thirds of the time of a save go into a canonical form and a printed graph that are thrown away.
    canonicalize = serialize.canonicalize
    serialize.canonicalize = lambda *args, **kwargs: None
    program.graph_module.print_readable = lambda *args, **kwargs: ""
    try:
        yield
    finally:
        serialize.canonicalize = canonicalize
        del program.graph_module.print_readable


def _shorten_traces(program: ExportedProgram) -> None:
    """Keeps the user's lines of each node's trace; a third of an archive is torch's own."""
    short: dict[str, str] = {}
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            trace = node.meta.get("stack_trace")
            if trace:
                if trace not in short:
                    short[trace] = _users_lines(trace)
                node.meta["stack_trace"] = short[trace]


def _users_lines(trace: str) -> str:
    entries: list[list[str]] = []
    for line in trace.splitlines():
        if line.lstrip().startswith('File "'):
            entries.append([line])
        elif entries:
            entries[-1].append(line)
    kept = [e for e in entries if is_users(e[0].split('"')[1])]
    return "\n".join("\n".join(entry) for entry in kept) or trace
