"""Turns a PyTorch model written for one device into a planned, readable program for many."""

from nnscaler.errors import (
    InfeasibleError,
    InputError,
    InternalError,
    NnscalerError,
    UnsupportedError,
)
from nnscaler.export import export
from nnscaler.register import (
    anchor,
    constant_folding,
    fold_constant,
    get_dynamic,
    mark_dynamic,
    no_constant_folding,
    register_op,
)
from nnscaler.version import __version__

__all__ = [
    "InfeasibleError",
    "InputError",
    "InternalError",
    "NnscalerError",
    "UnsupportedError",
    "__version__",
    "anchor",
    "constant_folding",
    "export",
    "fold_constant",
    "get_dynamic",
    "mark_dynamic",
    "no_constant_folding",
    "register_op",
]
