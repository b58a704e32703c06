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
from nnscaler.export.refusals import debugging, first_line
from nnscaler.export.tensors import valueless, without_value


def save(program: ExportedProgram, extra: dict[str, Any], path: Path, where: str) -> None:
    """Writes the archive, whole or not at all; the program is of no use afterwards.

    Args:
        program: what was exported.
        extra: goes into extra/nnscaler.json.
        path: of the archive.
        where: the model's forward, for messages.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no directory {path.parent}; make it first")
    if path.is_dir():
        raise InputError(f"{path}: is a directory; name a file, such as model.pt2")
    for tensors in (program._state_dict, program._constants):
        for name, value in tensors.items():
            if isinstance(value, nn.Parameter) or (
                isinstance(value, torch.Tensor) and without_value(value)
            ):
                tensors[name] = valueless(value)
    program._example_inputs = None
    program._guards_code = []
    buffer = io.BytesIO()
    try:
        with _quickly(program):
            torch.export.save(program, buffer, extra_files={"nnscaler.json": json.dumps(extra)})
    except Exception as error:
        failure = InputError(
            f"{where}: what was exported cannot be written to an archive: {type(error).__name__}: {first_line(error)}"
        )
        failure.cause = error
        raise failure from (error if debugging() else None)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(buffer.getvalue())
        os.replace(scratch, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
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
