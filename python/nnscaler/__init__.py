"""Turns a PyTorch model written for one device into a planned, readable program for many."""

from nnscaler.checkpoint import (
    broadcast_weights,
    deduped_state_dict,
    load_deduped_state_dict,
    load_merged_state_dict,
    load_merged_state_dict_from_rank,
    load_sharded_state_dict,
    merge_state_dicts,
    trimmed_broadcast_merged_state_dict,
)
from nnscaler.config import BroadcastGenFilesStrategy, ComputeConfig, ReuseType
from nnscaler.errors import (
    InfeasibleError,
    InputError,
    InternalError,
    NnscalerError,
    UnsupportedError,
)
from nnscaler.export import export
from nnscaler.flags import sync_grad_when
from nnscaler.initialize import init, uninit
from nnscaler.optimizer import build_optimizer
from nnscaler.parallel import parallelize
from nnscaler.register import (
    anchor,
    constant_folding,
    fold_constant,
    get_dynamic,
    mark_dynamic,
    no_constant_folding,
    register_op,
)
from nnscaler.runtime.module import ParallelModule
from nnscaler.version import __version__

__all__ = [
    "BroadcastGenFilesStrategy",
    "ComputeConfig",
    "InfeasibleError",
    "InputError",
    "InternalError",
    "NnscalerError",
    "ParallelModule",
    "ReuseType",
    "UnsupportedError",
    "__version__",
    "anchor",
    "broadcast_weights",
    "build_optimizer",
    "constant_folding",
    "deduped_state_dict",
    "export",
    "fold_constant",
    "get_dynamic",
    "init",
    "load_deduped_state_dict",
    "load_merged_state_dict",
    "load_merged_state_dict_from_rank",
    "load_sharded_state_dict",
    "mark_dynamic",
    "merge_state_dicts",
    "no_constant_folding",
    "parallelize",
    "register_op",
    "sync_grad_when",
    "trimmed_broadcast_merged_state_dict",
    "uninit",
]
