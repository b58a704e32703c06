"""Small helpers of training scripts."""

import os
from collections.abc import Iterator

import torch.distributed as dist

from nnscaler.flags import RuntimeFlag


def print_each_rank(msg: str, rank_only: int | None = None, logger=None) -> None:
    """Prints ``rank [r]: msg`` rank after rank; every rank of the job must call this.

    Without torch.distributed this process is rank 0. With ``SINGLE_DEV_MODE=1`` in the
    environment the message alone is printed.

    Args:
        msg: what to print.
        rank_only: the one rank that prints; None for all.
        logger: prints with ``logger.info`` instead.
    """

    def put(text: str) -> None:
        if logger is None:
            print(text, flush=True)
        else:
            logger.info(text)

    if os.environ.get("SINGLE_DEV_MODE") == "1":
        put(msg)
        return
    if not (dist.is_available() and dist.is_initialized()):
        if rank_only in (None, 0):
            put(f"rank [0]: {msg}")
        return
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank() and rank_only in (None, rank):
            put(f"rank [{rank}]: {msg}")
        dist.barrier()


class accum_mode:
    """Gradient accumulation by hand: which microbatch begins and which ends a step.

    Args:
        begin: this microbatch is the first: gradients may be zeroed.
        end: this microbatch is the last: gradients may be reduced.

    Example:
        >>> for i in accum_mode.steps(4):
        ...     loss = model(batches[i])
        ...     loss.backward()
    """

    def __init__(self, begin: bool = True, end: bool = True):
        self.begin, self.end = begin, end

    def __enter__(self) -> "accum_mode":
        self._before = (RuntimeFlag.skip_zero_grad, RuntimeFlag.skip_reducer)
        RuntimeFlag.skip_zero_grad = not self.begin
        RuntimeFlag.skip_reducer = not self.end
        return self

    def __exit__(self, *_) -> None:
        RuntimeFlag.skip_zero_grad, RuntimeFlag.skip_reducer = self._before

    @staticmethod
    def steps(num_steps: int) -> Iterator[int]:
        """Yields 0 to ``num_steps`` - 1, each with its flags set."""
        for step in range(num_steps):
            with accum_mode(step == 0, step == num_steps - 1):
                yield step
