"""Operators that communicate inside, against torch's on whole tensors: value and gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import nnscaler.runtime as rt
from nnscaler.errors import InputError, UnsupportedError
from pool import run_on

TOLERANCE = 1e-12


def near(a, b, what):
    same = torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    assert same, (what, (a - b).abs().max(), a, b)


def cross_entropy_job(axes, batch, classes):
    mesh = rt.Mesh(**axes)
    nb, nc = mesh.axis_size(batch), mesh.axis_size(classes)
    rows, cols = mesh.coordinate(batch), mesh.coordinate(classes)
    g = torch.Generator().manual_seed(7)
    cases = itertools.product(
        ("mean", "sum", "none"), (0.0, 0.1), (None, "whole", "local"), ((8,), (4, 2, 3)),
        ("some", "none", "all", "other rows"),
    )  # fmt: skip
    count = 0
    for reduction, smoothing, weighted, dims, ignored in cases:
        if weighted == "local" and nc == 1:
            continue
        x = torch.randn(dims[0], 12, *dims[1:], generator=g, dtype=torch.float64) * 5
        target = torch.randint(0, 12, dims, generator=g)
        if ignored == "some":
            target[torch.rand(dims, generator=g) < 0.3] = 5
        elif ignored == "all":
            target[:] = 5
        elif ignored == "other rows":  # Nothing valid on the first ranks.
            target[: dims[0] // max(nb, 2)] = 5
        weight = torch.rand(12, generator=g, dtype=torch.float64) if weighted else None
        mask = {"none": -100}.get(ignored, 5)
        whole = x.clone().requires_grad_()
        want = F.cross_entropy(
            whole, target, weight, ignore_index=mask, reduction=reduction,
            label_smoothing=smoothing,
        )  # fmt: skip
        grad = torch.randn(want.shape, generator=g, dtype=torch.float64)
        want.backward(grad)

        own = x.chunk(nb, 0)[rows].chunk(nc, 1)[cols].clone().requires_grad_()
        own_weight = weight.chunk(nc)[cols] if weighted == "local" else weight
        loss = rt.functional.cross_entropy(
            own, target.chunk(nb, 0)[rows], own_weight, ignore_index=mask, reduction=reduction,
            label_smoothing=smoothing, mesh=mesh, batch=batch, classes=classes,
        )  # fmt: skip
        loss.backward(grad.chunk(nb, 0)[rows] if reduction == "none" else grad)
        total = loss.detach()
        for axis in reversed(batch):
            step = rt.all_gather(axis, 0) if reduction == "none" else rt.all_reduce(axis)
            total = rt.redistribute(total, mesh, [step])
        what = (reduction, smoothing, weighted, dims, ignored)
        near(total, want.detach(), what)
        near(own.grad, whole.grad.chunk(nb, 0)[rows].chunk(nc, 1)[cols], what)
        count += 1
    return count


@pytest.mark.parametrize(
    "n, axes, batch, classes",
    [
        (2, {"a": 2}, ("a",), ()),
        (2, {"a": 2}, (), ("a",)),
        (4, {"a": 2, "b": 2}, ("a",), ("b",)),
        (4, {"a": 2, "b": 2}, (), ("a", "b")),
        (4, {"a": 2, "b": 2}, ("a", "b"), ()),
    ],
)
def test_cross_entropy(n, axes, batch, classes):
    assert min(run_on(n, cross_entropy_job, axes, batch, classes)) >= 96


def small_inputs_job():
    """A vector of classes; half precision; strings as axes; nothing split."""
    mesh = rt.Mesh(a=2)
    place = mesh.coordinate("a")
    x = torch.randn(6, dtype=torch.float64)
    got = rt.functional.cross_entropy(x.chunk(2)[place], torch.tensor(4), mesh=mesh, classes="a")
    near(got, F.cross_entropy(x, torch.tensor(4)), "vector")
    half = (torch.randn(4, 6) * 3).bfloat16()
    target = torch.tensor([0, 5, 2, 3])
    got = rt.functional.cross_entropy(half.chunk(2, 1)[place], target, mesh=mesh, classes="a")
    assert got.dtype == torch.bfloat16
    assert abs(got.item() - F.cross_entropy(half.float(), target).item()) < 0.01
    near(
        rt.functional.cross_entropy(half.double(), target, mesh=mesh),
        F.cross_entropy(half.double(), target),
        "whole",
    )


def test_cross_entropy_of_small_inputs():
    run_on(2, small_inputs_job)


def embedding_job(axes, rows):
    mesh = rt.Mesh(**axes)
    n, place = mesh.axis_size(rows), mesh.coordinate(rows)
    g = torch.Generator().manual_seed(3)
    table = torch.randn(12, 5, generator=g, dtype=torch.float64)
    for shape, padding in (((7,), None), ((2, 3), 4), ((2, 3), -1), ((), None), ((0,), 0)):
        index = torch.randint(0, 12, shape, generator=g)
        if padding is not None and index.numel():
            index.view(-1)[0] = padding % 12
        whole = table.clone().requires_grad_()
        want = F.embedding(index, whole, padding)
        grad = torch.randn(want.shape, generator=g, dtype=torch.float64)
        want.backward(grad)
        own = table.chunk(n)[place].clone().requires_grad_()
        out = rt.functional.embedding(index, own, padding, mesh=mesh, rows=rows)
        out.backward(grad)
        total = out.detach()
        for axis in rows:
            total = rt.redistribute(total, mesh, [rt.all_reduce(axis)])
        near(total, want.detach(), (shape, padding))
        near(own.grad, whole.grad.chunk(n)[place], (shape, padding))


@pytest.mark.parametrize(
    "n, axes, rows",
    [(2, {"a": 2}, ("a",)), (4, {"a": 2, "b": 2}, ("a", "b")), (4, {"a": 2, "b": 2}, ("b",))],
)
def test_embedding(n, axes, rows):
    run_on(n, embedding_job, axes, rows)


def errors_job():
    mesh = rt.Mesh(a=2)
    x, table = torch.zeros(2, 3), torch.zeros(3, 2)
    messages = []
    for call, kind in (
        (lambda: rt.functional.cross_entropy(x, torch.tensor([0, 6]), mesh=mesh, classes="a"), IndexError),
        (lambda: rt.functional.cross_entropy(x, torch.tensor([-1, 0]), mesh=mesh, classes="a"), IndexError),
        (lambda: rt.functional.embedding(torch.tensor([0, 6]), table, mesh=mesh, rows="a"), IndexError),
        (lambda: rt.functional.cross_entropy(x, torch.zeros(2, 3), mesh=mesh), UnsupportedError),
        (lambda: rt.functional.cross_entropy(x, torch.tensor([0, 1]), mesh=mesh, reduction="max"), InputError),
    ):  # fmt: skip
        with pytest.raises(kind) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_errors():
    assert run_on(2, errors_job)[0] == [
        "cross_entropy: target 6 is out of range: 0 to 5",
        "cross_entropy: target -1 is out of range: 0 to 5",
        "embedding: index 6 is out of range: 0 to 5",
        "cross_entropy: split logits need class indices as targets",
        "cross_entropy: 'max' is not a reduction; write mean, sum, none",
    ]
