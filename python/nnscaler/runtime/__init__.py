"""What generated programs run on: ``import nnscaler.runtime as rt``."""

from nnscaler.runtime import functional, gnorm
from nnscaler.runtime.check import check_constant, check_input
from nnscaler.runtime.layout import AttrMeta, Layout, buffer, parameter
from nnscaler.runtime.mesh import Mesh
from nnscaler.runtime.mesh import wire_device as device
from nnscaler.runtime.module import ParallelModule, ParamsInfo
from nnscaler.runtime.random import manual_seed
from nnscaler.runtime.recompute import checkpoint
from nnscaler.runtime.redistribute import (
    all_gather,
    all_reduce,
    all_to_all,
    keep_first,
    pad,
    redistribute,
    reduce_scatter,
    slice,
)
from nnscaler.runtime.reducer import Reducer

gnorm.install()

__all__ = [
    "AttrMeta",
    "Layout",
    "Mesh",
    "ParallelModule",
    "ParamsInfo",
    "Reducer",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "buffer",
    "check_constant",
    "check_input",
    "checkpoint",
    "device",
    "functional",
    "keep_first",
    "manual_seed",
    "pad",
    "parameter",
    "redistribute",
    "reduce_scatter",
    "slice",
]
