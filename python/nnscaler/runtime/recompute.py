"""Recomputation: a region's values are dropped after forward and made again in backward."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.utils.checkpoint

from nnscaler.runtime import random


def checkpoint(fn: Callable, *args, preserve_rng_state: bool = True):
    """Calls ``fn(*args)`` and keeps only its arguments for backward.

    Collectives within are made again in backward, in the same order on all ranks.

    Args:
        fn: the region; it must do the same each time.
        args: its arguments.
        preserve_rng_state: the second run draws the same random numbers, those of the default
            generator and those of `Mesh.rng`.
    """

    def contexts():
        states = random.snapshot()
        return nullcontext(), random.replayed(states)

    extra = {"context_fn": contexts} if preserve_rng_state else {}
    return torch.utils.checkpoint.checkpoint(
        fn, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **extra
    )
