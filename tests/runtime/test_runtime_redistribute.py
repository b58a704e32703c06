"""Each step against its definition, on whole tensors that every rank can make."""

import pytest
import torch

import nnscaler.runtime as rt
from nnscaler.errors import InputError
from pool import run_on

DTYPES = [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex128]


def whole(shape, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 8, shape, generator=g).to(dtype)


def parts_of_sum(total, n):
    """n tensors that add up to ``total``, exactly."""
    parts = [whole(total.shape, total.dtype, 100 + i) for i in range(n - 1)]
    return [*parts, total - sum(parts)]


def steps_job(axes):
    mesh = rt.Mesh(**axes)
    for axis, n in axes.items():
        place = mesh.coordinate(axis)
        for dtype in DTYPES:
            for shape in ((4, 8, 12), (1, 4, 8), (8,)):
                x = whole(shape, dtype)
                for dim in range(len(shape)):
                    if shape[dim] % n:
                        continue
                    own = x.chunk(n, dim)[place]
                    check(mesh, x, rt.slice(axis, dim), own)
                    check(mesh, own, rt.all_gather(axis, dim), x)
                    check(mesh, own.contiguous(), rt.all_gather(axis, dim=dim), x)
                    zeros = torch.zeros_like(x)
                    zeros.chunk(n, dim)[place].copy_(own)
                    check(mesh, own, rt.pad(axis, dim), zeros)
                    for to_dim in range(len(shape)):
                        if to_dim != dim and shape[to_dim] % n == 0:
                            there = x.chunk(n, to_dim)[place]
                            check(mesh, own, rt.all_to_all(axis, dim, to_dim), there)
                    if dtype in (torch.float64, torch.complex128, torch.int64):
                        part = parts_of_sum(x, n)[place]
                        check(mesh, part, rt.reduce_scatter(axis, dim), own)
                if dtype in (torch.float64, torch.complex128, torch.int64):
                    part = parts_of_sum(x, n)[place]
                    check(mesh, part, rt.all_reduce(axis), x)
                    check(
                        mesh,
                        part.mT if part.dim() > 1 else part,
                        rt.all_reduce(axis),
                        x.mT if x.dim() > 1 else x,
                    )
                first = x if place == 0 else torch.zeros_like(x)
                check(mesh, x, rt.keep_first(axis), first)
        several = torch.stack([whole((3, 4), seed=i) for i in range(n)])
        check(mesh, several[place], rt.all_reduce(axis, "max"), several.amax(0))
        check(mesh, several[place], rt.all_reduce(axis, op="min"), several.amin(0))


def check(mesh, x, step, want):
    before = x.clone()
    got = rt.redistribute(x, mesh, forward=[step], backward=[])
    assert got.dtype == want.dtype and torch.equal(got, want), (step, x.shape, got, want)
    assert got.is_contiguous(), step
    assert torch.equal(x, before), f"{step} changed its input"


@pytest.mark.parametrize("n, axes", [(2, {"a": 2}), (4, {"a": 4}), (4, {"a": 2, "b": 2})])
def test_steps(n, axes):
    run_on(n, steps_job, axes)


def big_job():
    """Sizes at which another algorithm runs."""
    mesh = rt.Mesh(a=2)
    place = mesh.coordinate("a")
    x = torch.arange(2.0 * 512 * 600).view(2, 512, 600)
    for dim in range(3):
        own = x.chunk(2, dim)[place] * (dim + 1)  # Other numbers than memory still holds.
        check(mesh, own, rt.all_gather("a", dim), x * (dim + 1))
        own = x.chunk(2, dim)[place]
        check(mesh, x * (place + 1), rt.reduce_scatter("a", dim), own * 3)


def test_large_tensors():
    run_on(2, big_job)


def gradient_job():
    """Sequence parallelism on one axis, a batch on the other: each half has its own steps."""
    mesh = rt.Mesh(dp=2, tp=2)
    dp, tp = mesh.coordinate("dp"), mesh.coordinate("tp")
    x = whole((4, 8, 6))
    own = x.chunk(2, 0)[dp].chunk(2, 1)[tp].clone().requires_grad_()
    y = rt.redistribute(
        own,
        mesh,
        forward=[rt.all_gather("tp", dim=1), rt.all_gather("dp", dim=0)],
        backward=[rt.slice("dp", dim=0), rt.reduce_scatter("tp", dim=1)],
    )
    assert torch.equal(y, x)
    g = whole((4, 8, 6), seed=5)
    y.backward(parts_of_sum(g, 2)[tp])
    assert torch.equal(own.grad, g.chunk(2, 0)[dp].chunk(2, 1)[tp])

    x = whole((4, 6)).requires_grad_()
    y = rt.redistribute(x, mesh, forward=[], backward=[rt.all_reduce("tp")])
    (y * (tp + 1)).sum().backward()
    assert torch.equal(x.grad, torch.full((4, 6), 3.0, dtype=torch.float64))

    x.grad = None
    y = rt.redistribute(x, mesh, forward=[rt.keep_first("dp")], backward=[])
    (y * 5).sum().backward()
    assert torch.equal(x.grad, torch.full((4, 6), 5.0, dtype=torch.float64))

    y = rt.redistribute(x, mesh, forward=[], backward=[rt.all_reduce("tp")]).square().sum()
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()

    with torch.no_grad():
        y = rt.redistribute(x, mesh, forward=[rt.slice("dp", 0)], backward=[rt.all_gather("dp", 0)])
    assert y.grad_fn is None


def test_gradients_take_their_own_steps():
    run_on(4, gradient_job)


def uneven_job():
    mesh = rt.Mesh(a=2)
    messages = []
    for step in (rt.slice("a", 1), rt.reduce_scatter("a", 1), rt.all_to_all("a", 0, 1)):
        with pytest.raises(InputError) as caught:
            rt.redistribute(torch.zeros(2, 3), mesh, [step])
        messages.append(str(caught.value))
    return messages


def test_uneven_extent_is_refused_before_sending():
    assert run_on(2, uneven_job)[1] == [
        "slice over a: dim 1 of (2, 3) does not divide by 2",
        "reduce_scatter over a: dim 1 of (2, 3) does not divide by 2",
        "all_to_all over a: dim 1 of (2, 3) does not divide by 2",
    ]


def test_axes_of_size_one_do_nothing():
    mesh = rt.Mesh(a=1)
    x = torch.ones(3)
    assert rt.redistribute(x, mesh, forward=[rt.all_reduce("a"), rt.slice("a", 0)]) is x


def test_unknown_reduction():
    with pytest.raises(InputError, match="all_reduce: op 'mean' is none of sum, max, min"):
        rt.all_reduce("a", "mean")
