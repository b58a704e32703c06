"""Every collective of the runtime goes through here, and is timed here when the timer asks.

Collectives block the program (on CUDA: the current stream), or are started and waited for later.
A group None means this rank alone: nothing is sent. ``field`` is the timer's name for it.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from nnscaler.profiler import timer as _timer

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

SUM, MAX, MIN = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN
OPS = {"sum": SUM, "max": MAX, "min": MIN}

_BROADCAST_BYTES = 2**18


def all_reduce(x: torch.Tensor, group, field: str, op=SUM) -> None:
    """Reduces ``x`` over the group, in place."""
    if group is not None:
        _block(field, x.nbytes, 2, group, x, lambda: dist.all_reduce(x, op, group))


def all_gather(out: torch.Tensor, x: torch.Tensor, group, field: str) -> None:
    """Fills ``out`` with every rank's ``x``, one after the other."""
    whole, own = out.view(-1), x.view(-1)

    def launch():
        if x.device.type == "cpu" and x.nbytes >= _BROADCAST_BYTES:
            _gather_by_broadcasts(whole, own, group)
        else:
            _all_gather(whole, own, group=group)

    _block(field, out.nbytes, 1, group, x, launch)


def reduce_scatter(out: torch.Tensor, x: torch.Tensor, group, field: str) -> None:
    """Sums ``x`` over the group; ``out`` is this rank's part of it."""
    flat, own = x.view(-1), out.view(-1)

    def launch():
        if x.device.type == "cpu":
            _scatter_and_add(own, flat, group)
        else:
            _reduce_scatter(own, flat, op=SUM, group=group)

    _block(field, x.nbytes, 1, group, x, launch)


def all_to_all(out: torch.Tensor, x: torch.Tensor, group, field: str) -> None:
    """Sends part i of ``x`` to rank i; ``out`` is what this rank got, in rank order."""
    flat, got = x.view(-1), out.view(-1)
    _block(field, x.nbytes, 1, group, x, lambda: dist.all_to_all_single(got, flat, group=group))


def swap(x: torch.Tensor, group, field: str) -> torch.Tensor:
    """Sends ``x``, contiguous, to the other rank of a group of two; what came from there."""
    got = torch.empty_like(x)
    splits = [0, 0]
    splits[1 - dist.get_rank(group)] = x.numel()
    flat, out = x.view(-1), got.view(-1)
    _block(
        field, 2 * x.nbytes, 1, group, x,
        lambda: dist.all_to_all_single(out, flat, splits, splits, group=group),
    )  # fmt: skip
    return got


def broadcast(x: torch.Tensor, src: int, group, field: str = "broadcast") -> None:
    """Copies ``x`` of rank ``src`` of the job to the group."""
    if group is not None:
        _block(field, x.nbytes, 1, group, x, lambda: dist.broadcast(x, src, group))


# gloo copies an all-gather through a buffer of its own, and makes a reduce-scatter of an all-reduce.
# Measured on 2 and 4 ranks, 64 bytes to 16 MiB: what follows takes about half the processor time.


def _gather_by_broadcasts(whole: torch.Tensor, own: torch.Tensor, group) -> None:
    parts = whole.chunk(dist.get_world_size(group))
    parts[dist.get_rank(group)].copy_(own)
    works = [
        dist.broadcast(part, group=group, group_src=rank, async_op=True)
        for rank, part in enumerate(parts)
    ]
    for work in works:
        work.wait()


def _scatter_and_add(own: torch.Tensor, flat: torch.Tensor, group) -> None:
    got = torch.empty_like(flat)
    dist.all_to_all_single(got, flat, group=group)
    parts = got.view(-1, own.numel())
    if len(parts) == 2:
        torch.add(parts[0], parts[1], out=own)
    else:
        torch.sum(parts, 0, dtype=own.dtype, out=own)


class Pending:
    """A collective under way."""

    def __init__(self, wait: Callable[[], object], keep: object = None):
        self._wait, self._keep = wait, keep

    def wait(self) -> None:
        """Blocks the program (on CUDA: the current stream) until it is complete."""
        self._wait()


def start_all_reduce(
    x: torch.Tensor, group, field: str, nbytes: int, overlaps: bool = True
) -> Pending:
    """Starts to sum ``x`` over the group in place.

    Args:
        x: the tensor.
        group: its ranks.
        field: the timer's.
        nbytes: payload in ``x``, which may hold more.
        overlaps: whether the program goes on with other work before it waits.
    """

    def launch():
        return dist.all_reduce(x, SUM, group, async_op=True)

    if not _timer.predefined_on:
        return Pending(launch().wait, x)
    sent = _sent(nbytes, 2, group)
    return Pending(_timer.started(field, nbytes, sent, x.device, launch, overlaps).wait, x)


def _sent(nbytes: int, rounds: int, group) -> int:
    """Bytes that one rank sends at least: (n - 1) / n of the whole tensor a round."""
    n = dist.get_world_size(group)
    return rounds * nbytes * (n - 1) // n


def _block(field: str, nbytes: int, rounds: int, group, x: torch.Tensor, launch) -> None:
    if _timer.predefined_on:
        _timer.blocking(field, nbytes, _sent(nbytes, rounds, group), x.device, launch)
    else:
        launch()
