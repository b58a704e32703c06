"""What ranks must agree on, and errors that all of them must see."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from nnscaler.errors import InputError, NnscalerError
from nnscaler.runtime.mesh import world_rank, world_size


def fingerprint(*files: str | Path) -> str:
    """Digest of the content of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(Path(file).read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def verify_agreement(
    digest: str, what: str = "generated code", expected: str | None = None
) -> None:
    """Raises on every rank when the ranks' digests differ, naming those that do.

    Args:
        digest: this rank's.
        what: what it is of, for the message.
        expected: what it should be, alike on all ranks, if that is known.

    Raises:
        InputError: ranks differ among themselves or from what is expected.
    """
    digests: list[str | None] = [digest]
    if world_size() > 1:
        digests = [None] * world_size()
        dist.all_gather_object(digests, digest)
    ranks_of: dict[str | None, list[int]] = {}
    for rank, other in enumerate(digests):
        ranks_of.setdefault(other, []).append(rank)
    if len(ranks_of) == 1 and expected in (None, digest):
        return
    parts = "; ".join(
        f"{str(d)[:40]} on rank{'s' if len(r) > 1 else ''} {_ranges(r)}"
        for d, r in ranks_of.items()
    )
    if expected is not None:
        parts += f"; {expected[:40]} was written"
    raise InputError(
        f"the ranks differ in {what}: {parts}; give all of them the same files, on a shared file "
        "system or with broadcast_strategy='all'"
    )


def on_rank0(fn: Callable[[], Any], doing: str = "") -> Any:
    """Runs ``fn`` on rank 0 and returns its result on every rank; an error is raised on every rank.

    Args:
        fn: returns something picklable.
        doing: what it does, for the message.

    Raises:
        NnscalerError: the kind that rank 0 had, with its message.
        RuntimeError: rank 0 had another error.
    """
    if world_size() == 1:
        return fn()
    outcome: list[Any] = [None]
    error: BaseException | None = None
    if world_rank() == 0:
        try:
            outcome[0] = (True, fn())
        except BaseException as caught:
            error = caught
            outcome[0] = (False, _portable(caught, doing))
    dist.broadcast_object_list(outcome, 0)
    fine, value = outcome[0]
    if error is not None:
        raise error
    if not fine:
        raise value
    return value


def raise_together(error: BaseException | None, doing: str = "") -> None:
    """Raises on every rank when some rank has an error, naming the rank; all ranks must call this.

    Args:
        error: this rank's, or None.
        doing: what was done, for the message.
    """
    if world_size() > 1:
        errors: list[Any] = [None] * world_size()
        dist.all_gather_object(errors, None if error is None else _portable(error, doing))
        if error is None:
            error = next((other for other in errors if other is not None), None)
    if error is not None:
        raise error


def _portable(error: BaseException, doing: str) -> Exception:
    """An error that every rank can unpickle, naming this one: of its own kind if nnscaler's."""
    where = f"rank {world_rank()}{': ' + doing if doing else ''}: "
    if isinstance(error, NnscalerError):
        return type(error)(where + str(error))
    return RuntimeError(f"{where}{type(error).__name__}: {error}")


def _ranges(ranks: list[int]) -> str:
    """``0-2,5`` of [0, 1, 2, 5]."""
    parts, start = [], ranks[0]
    for rank, following in zip(ranks, [*ranks[1:], None], strict=True):
        if following != rank + 1:
            parts.append(str(rank) if start == rank else f"{start}-{rank}")
            start = following
    return ",".join(parts)
