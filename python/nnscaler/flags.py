"""Process-wide switches that generated programs and optimizers read at run time."""

from collections.abc import Iterator
from contextlib import contextmanager


class RuntimeFlag:
    """Switches of this process, as class attributes.

    Attributes:
        skip_zero_grad: ``ParallelModule.zero_grad`` does nothing.
        skip_reducer: gradients of a backward pass are accumulated on this rank and not reduced.
    """

    skip_zero_grad: bool = False
    skip_reducer: bool = False


@contextmanager
def sync_grad_when(cond: bool) -> Iterator[None]:
    """Reduces the gradients of the backward passes inside only when ``cond`` is true.

    Needed around all but the last microbatch when gradients are reduced during backward
    (``use_async_reducer``). Otherwise gradients are reduced at ``optimizer.step()`` anyway.

    Args:
        cond: true for the last microbatch.
    """
    before = RuntimeFlag.skip_reducer
    RuntimeFlag.skip_reducer = not cond
    try:
        yield
    finally:
        RuntimeFlag.skip_reducer = before
