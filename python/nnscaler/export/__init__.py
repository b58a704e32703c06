"""The front end: an `nn.Module` and sample arguments to a `torch.export` archive.

`program.py` runs an export; the other files each hold one thing that torch.export does not do alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn


def export(
    module: nn.Module | Callable[[], tuple],
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    path: str | Path | None = None,
    *,
    dynamic_shapes: Any = None,
    training: bool = True,
    meta: bool = False,
) -> Path:
    """Exports a model to a `.pt2` archive that nnscaler plans from.

    The archive is torch.export's, with `extra/nnscaler.json` beside it. Weights are neither copied nor
    stored; buffers and constants are. The module is left as it was.

    Args:
        module: the model, or a function that returns (module, args, kwargs).
        args: sample arguments by position.
        kwargs: sample arguments by name.
        path: where to write; `model.pt2` by default.
        dynamic_shapes: which dimensions of the arguments vary, as for `torch.export.export`. Those that
            `nnscaler.mark_dynamic` marked vary without it.
        training: export the model as it trains (modules that were put in evaluation mode within a model
            that trains stay so), or as it evaluates.
        meta: call the function under the meta device, for models that no machine holds. Buffers that are
            not in the state dict have no values then.

    Returns:
        The path written.

    Raises:
        InputError: the model cannot be exported; says at which line, why, and what to do.
    """
    from nnscaler.export import program  # torch.export takes a second to import

    return program.export(module, args, kwargs, path, dynamic_shapes, training, meta)
