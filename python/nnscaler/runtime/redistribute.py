"""One autograd function that brings a value from one layout to another.

Its halves are lists of steps. The forward steps act on the value, the backward steps on the
gradient of the result: they are a pair from the same table, yet neither is derived from the other,
since a value and its gradient have layouts of their own.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch.autograd.function import once_differentiable

from nnscaler.errors import InputError, InternalError
from nnscaler.runtime import comm
from nnscaler.runtime.mesh import Mesh


class Step:
    """One move on one mesh axis. Equal steps are one object, so they compare by identity."""

    __slots__ = ("kind", "axis", "dim", "to_dim", "op")

    def __init__(self, kind: str, axis: str, dim: int = 0, to_dim: int = 0, op: str = "sum"):
        self.kind, self.axis, self.dim, self.to_dim, self.op = kind, axis, dim, to_dim, op

    def __repr__(self) -> str:
        return f"{self.kind}({self.axis!r}, dim={self.dim}, to_dim={self.to_dim}, op={self.op!r})"


@cache
def slice(axis: str, dim: int) -> Step:
    """Replicate -> Shard(dim): keeps the own part."""
    return Step("slice", axis, dim)


@cache
def all_gather(axis: str, dim: int) -> Step:
    """Shard(dim) -> Replicate."""
    return Step("all_gather", axis, dim)


@cache
def all_to_all(axis: str, dim: int, to_dim: int) -> Step:
    """Shard(dim) -> Shard(to_dim)."""
    return Step("all_to_all", axis, dim, to_dim)


@cache
def all_reduce(axis: str, op: str = "sum") -> Step:
    """Partial -> Replicate; ``op`` is sum, max or min."""
    if op not in comm.OPS:
        raise InputError(f"all_reduce: op {op!r} is none of {', '.join(comm.OPS)}")
    return Step("all_reduce", axis, op=op)


@cache
def reduce_scatter(axis: str, dim: int) -> Step:
    """Partial -> Shard(dim)."""
    return Step("reduce_scatter", axis, dim)


@cache
def keep_first(axis: str) -> Step:
    """Replicate -> Partial: the first rank keeps the value, the others hold zeros."""
    return Step("keep_first", axis)


@cache
def pad(axis: str, dim: int) -> Step:
    """Shard(dim) -> Partial: the own part among zeros."""
    return Step("pad", axis, dim)


def redistribute(
    x: torch.Tensor,
    mesh: Mesh,
    forward: list[Step] | tuple[Step, ...] = (),
    backward: list[Step] | tuple[Step, ...] = (),
) -> torch.Tensor:
    """Applies ``forward`` to the value now and ``backward`` to its gradient later.

    Args:
        x: the value; any dtype that the collectives know.
        mesh: the plan's mesh.
        forward: steps in order; none: the value stays as it is.
        backward: steps on the gradient of the result, in order; unused where ``x`` needs none.

    Returns:
        The value in its new layout, contiguous where a step touched it. ``x`` itself is not
        changed.
    """
    key = (*forward, None, *backward)
    mesh.locate()
    pair = mesh.compiled.get(key)
    if pair is None:
        pair = mesh.compiled[key] = (_compile(mesh, forward), _compile(mesh, backward))
    if x.requires_grad and torch.is_grad_enabled():
        return _Redistribute.apply(x, *pair)
    return pair[0](x) if pair[0] is not None else x


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_steps, backward_steps):
        ctx.backward_steps = backward_steps
        return forward_steps(x) if forward_steps is not None else x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        steps = ctx.backward_steps
        return (steps(grad) if steps is not None else grad), None, None


Move = Callable[[torch.Tensor], torch.Tensor]


def _compile(mesh: Mesh, steps) -> Move | None:
    moves = [_move(mesh, step) for step in steps if mesh.axis_size(step.axis) > 1]
    if not moves:
        return None
    if len(moves) == 1:
        return moves[0]

    def chain(x: torch.Tensor) -> torch.Tensor:
        for move in moves:
            x = move(x)
        return x

    return chain


def _check_divides(x: torch.Tensor, dim: int, n: int, step: Step) -> None:
    if x.shape[dim] % n:
        raise InputError(
            f"{step.kind} over {step.axis}: dim {dim} of {tuple(x.shape)} does not divide by {n}"
        )


def _parts(x: torch.Tensor, dim: int, n: int, step: Step) -> torch.Tensor:
    """``x`` cut into n along ``dim``, the parts stacked in front, contiguous."""
    _check_divides(x, dim, n, step)
    if dim == 0:
        return x.unflatten(0, (n, -1)).contiguous()
    return x.unflatten(dim, (n, -1)).movedim(dim, 0).contiguous()


def _join(parts: torch.Tensor, dim: int) -> torch.Tensor:
    """Inverse of `_parts`: the leading parts one after the other along ``dim``, contiguous."""
    if dim == 0:
        return parts.flatten(0, 1)
    return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous()


# Between two ranks on CPUs, each sends what the other lacks and nothing to itself; all else is one copy.


def _halves(x: torch.Tensor, dim: int, place: int, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's half of ``x`` along ``dim``, and the other's; views."""
    _check_divides(x, dim, 2, step)
    halves = x.chunk(2, dim)
    return halves[place], halves[1 - place]


def _join_halves(own: torch.Tensor, other: torch.Tensor, dim: int, place: int) -> torch.Tensor:
    return torch.cat((own, other) if place == 0 else (other, own), dim)


def _move(mesh: Mesh, step: Step) -> Move:
    n, place = mesh.axis_size(step.axis), mesh.coordinate(step.axis)
    group = None if step.kind in ("slice", "keep_first", "pad") else mesh.group(step.axis)
    dim, to_dim, kind = step.dim, step.to_dim, step.kind
    field = f"{kind}({step.axis})"
    if min(dim, to_dim) < 0:
        raise InternalError(f"{step}: dims count from the front")

    if kind == "slice":

        def move(x):
            extent = x.shape[dim]
            if extent % n:
                raise InputError(
                    f"slice over {step.axis}: dim {dim} of {tuple(x.shape)} does not divide by {n}"
                )
            return x.narrow(dim, place * (extent // n), extent // n).contiguous()

    elif kind == "all_gather":

        def move(x):
            if n == 2 and x.device.type == "cpu":
                other = comm.swap(x.contiguous(), group, field)
                return _join_halves(x, other, dim, place)
            out = x.new_empty((n, *x.shape))
            comm.all_gather(out, x.contiguous(), group, field)
            return _join(out, dim)

    elif kind == "all_to_all":

        def move(x):
            if n == 2 and x.device.type == "cpu":
                own, theirs = _halves(x, to_dim, place, step)
                return _join_halves(own, comm.swap(theirs.contiguous(), group, field), dim, place)
            parts = _parts(x, to_dim, n, step)
            out = torch.empty_like(parts)
            comm.all_to_all(out, parts, group, field)
            return _join(out, dim)

    elif kind == "all_reduce":
        op = comm.OPS[step.op]

        def move(x):
            out = x.clone(memory_format=torch.contiguous_format)
            comm.all_reduce(out, group, field, op)
            return out

    elif kind == "reduce_scatter":

        def move(x):
            if n == 2 and x.device.type == "cpu":
                own, theirs = _halves(x, dim, place, step)
                return comm.swap(theirs.contiguous(), group, field).add_(own)
            parts = _parts(x, dim, n, step)
            out = parts.new_empty(parts.shape[1:])
            comm.reduce_scatter(out, parts, group, field)
            return out

    elif kind == "keep_first":

        def move(x):
            return x.contiguous() if place == 0 else x.new_zeros(x.shape)

    elif kind == "pad":

        def move(x):
            extent = x.shape[dim]
            out = x.new_zeros((*x.shape[:dim], n * extent, *x.shape[dim + 1 :]))
            out.narrow(dim, place * extent, extent).copy_(x)
            return out

    else:
        raise InternalError(f"unknown step {step}")
    return move
