"""Operators that communicate inside: the variants that a plan may choose.

Each takes what `torch.nn.functional` takes, local where the mesh splits it.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from nnscaler.errors import InputError, UnsupportedError
from nnscaler.runtime import comm
from nnscaler.runtime.mesh import Mesh


def _field(kind: str, axes: tuple[str, ...]) -> str:
    return f"{kind}({','.join(axes)})"


def _axes(mesh: Mesh, axes: str | tuple[str, ...]) -> tuple[str, ...]:
    """Axes along which there is more than one rank, in the mesh's order."""
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    mesh.axis_size(axes)
    return tuple(axis for axis in mesh.axes if axis in axes and mesh.axes[axis] > 1)


def _check_range(index: torch.Tensor, extent: int, ignore: int | None, what: str) -> None:
    """Raises where an index is outside, as the operator on one device would."""
    fine = (index >= 0) & (index < extent)
    if ignore is not None:
        fine |= index == ignore
    if index.device.type == "cpu":
        if not bool(fine.all()):
            bad = index[~fine][0].item()
            raise IndexError(f"{what} {bad} is out of range: 0 to {extent - 1}")
    else:
        torch._assert_async(fine.all())


def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    *,
    mesh: Mesh,
    rows: str | tuple[str, ...] = (),
) -> torch.Tensor:
    """Embedding lookup in a table whose rows are split: a partial sum along ``rows``.

    Args:
        input: indices into the whole table, alike along ``rows``.
        weight: this rank's rows.
        padding_idx: row of the whole table that gets no gradient.
        mesh: the plan's mesh.
        rows: axes that split the rows.

    Raises:
        IndexError: an index is outside the whole table (on CUDA: a device-side assertion).
    """
    rows = _axes(mesh, rows)
    if not rows:
        return F.embedding(input, weight, padding_idx)
    extent, n = weight.shape[0], mesh.axis_size(rows)
    _check_range(input, extent * n, None, "embedding: index")
    low = extent * mesh.coordinate(rows)
    if padding_idx is not None:
        padding_idx = padding_idx + extent * n if padding_idx < 0 else padding_idx
        padding_idx -= low
        if not 0 <= padding_idx < extent:
            padding_idx = None
    index = input - low
    elsewhere = (index < 0) | (index >= extent)
    out = F.embedding(index.masked_fill_(elsewhere, 0), weight, padding_idx)
    return out.masked_fill(elsewhere.unsqueeze(-1), 0)


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    mesh: Mesh,
    batch: str | tuple[str, ...] = (),
    classes: str | tuple[str, ...] = (),
) -> torch.Tensor:
    """Cross entropy of logits whose batch, classes or both are split.

    Args:
        input: this rank's logits, ``[C]``, ``[N, C]`` or ``[N, C, d1, ...]``.
        target: class indices in the whole range, of this rank's rows; alike along ``classes``.
        weight: weight of each class, all of them or this rank's.
        ignore_index: target that counts nothing.
        reduction: mean, sum or none.
        label_smoothing: as in torch.
        mesh: the plan's mesh.
        batch: axes that split any dims but the classes.
        classes: axes that split the classes.

    Returns:
        With ``batch`` a partial sum along it for mean and sum, and the local rows for none; the
        mean divides by what is valid on all ranks. Along ``classes`` every rank has the whole
        result. Without a valid target the mean is nan, as in torch.

    Raises:
        IndexError: a target is outside the classes (on CUDA: a device-side assertion).
    """
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"cross_entropy: {reduction!r} is not a reduction; write mean, sum, none")
    if target.is_floating_point():
        raise UnsupportedError("cross_entropy: split logits need class indices as targets")
    batch, classes = _axes(mesh, batch), _axes(mesh, classes)
    part = "sum" if reduction == "mean" else reduction
    if classes:
        class_dim = 0 if input.dim() == 1 else 1
        num_classes = input.shape[class_dim] * mesh.axis_size(classes)
        _check_range(target, num_classes, ignore_index, "cross_entropy: target")
        loss = _SplitCrossEntropy.apply(
            input, target, weight, ignore_index, label_smoothing, part == "sum", mesh, classes
        )
    else:
        loss = F.cross_entropy(
            input,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=part,
            label_smoothing=label_smoothing,
        )
    if reduction != "mean":
        return loss
    return loss / _valid(input, target, weight, ignore_index, mesh, batch, classes)


def _whole_weight(weight, local_classes: int, mesh: Mesh, classes) -> torch.Tensor:
    """Weights of all classes from all of them or from this rank's."""
    n = mesh.axis_size(classes)
    if n == 1 or weight.numel() == local_classes * n:
        return weight
    out = weight.new_empty(weight.numel() * n)
    comm.all_gather(out, weight.contiguous(), mesh.group(classes), _field("all_gather", classes))
    return out


def _valid(input, target, weight, ignore_index, mesh, batch, classes) -> torch.Tensor:
    """What a mean divides by: the number or the weight of valid targets on all ranks."""
    with torch.no_grad():
        valid = target != ignore_index
        if weight is None:
            count = valid.sum()
        else:
            local_classes = input.shape[0 if input.dim() == 1 else 1]
            weight = _whole_weight(weight, local_classes, mesh, classes)
            count = weight[target.masked_fill(~valid, 0)].masked_fill(~valid, 0).sum()
        if batch:
            comm.all_reduce(count, mesh.group(batch), _field("all_reduce", batch))
        return count


class _SplitCrossEntropy(torch.autograd.Function):
    """Per row: (1 - s) w_t (lse - x_t) + s / C (W lse - sum_j w_j x_j), lse = log sum_j exp x_j.

    Here s is the label smoothing, w the class weights with sum W. Its gradient at class k is
    p_k ((1 - s) w_t + s W / C) - (1 - s) w_t [k = t] - s w_k / C. One reduction finds the rows'
    maxima, one all sums; backward needs none.
    """

    @staticmethod
    def forward(ctx, x, target, weight, ignore_index, smoothing, summed, mesh, classes):
        group, field = mesh.group(classes), _field("all_reduce", classes)
        class_dim = 0 if x.dim() == 1 else 1
        local, n = x.shape[class_dim], mesh.axis_size(classes)
        low = local * mesh.coordinate(classes)
        logits = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

        top = logits.amax(class_dim)
        comm.all_reduce(top, group, field, comm.MAX)
        shifted = logits - top.unsqueeze(class_dim)
        valid = target != ignore_index
        index = target - low
        here = valid & (index >= 0) & (index < local)
        index = index.masked_fill_(~here, 0).unsqueeze(class_dim)
        hit = shifted.gather(class_dim, index).squeeze(class_dim).masked_fill_(~here, 0)
        all_weights = local_weights = None
        if weight is not None:
            all_weights = _whole_weight(weight, local, mesh, classes).to(logits.dtype)
            local_weights = all_weights[low : low + local]
        per_class = (-1, *[1] * (x.dim() - class_dim - 1))
        sums = [None, hit]
        if smoothing:
            smooth = shifted if weight is None else shifted * local_weights.view(per_class)
            sums.append(smooth.sum(class_dim))
        p = shifted.exp_()
        sums[0] = p.sum(class_dim)
        sums = torch.stack(sums)
        comm.all_reduce(sums, group, field)

        log_sum = sums[0].log()
        row = log_sum - sums[1]
        target_weight = None
        if weight is not None:
            target_weight = all_weights[target.masked_fill(~valid, 0)]
            row = row * target_weight
        total = local * n if weight is None else all_weights.sum()
        if smoothing:
            spread = smoothing / (local * n)
            row = row * (1 - smoothing) + (log_sum * total - sums[2]) * spread
        row = row.masked_fill(~valid, 0)

        # Factor of p_k in the gradient, and of [k = t].
        peak = torch.ones_like(row) if target_weight is None else target_weight
        peak = peak * (1 - smoothing)
        scale = peak + total * smoothing / (local * n) if smoothing else peak
        ctx.save_for_backward(p, scale / sums[0], peak, index, here, valid, local_weights)
        ctx.how = (class_dim, smoothing / (local * n), summed, x.dtype, per_class)
        return (row.sum() if summed else row).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        p, scale, peak, index, here, valid, local_weights = ctx.saved_tensors
        class_dim, spread, summed, dtype, per_class = ctx.how
        # Of an ignored row nothing, even where a mean over no row makes the gradient infinite.
        grad = grad.to(p.dtype).expand(valid.shape).masked_fill(~valid, 0)
        out = p * (scale * grad).unsqueeze(class_dim)
        at_target = (peak * grad).masked_fill_(~here, 0).neg_().unsqueeze(class_dim)
        out.scatter_add_(class_dim, index, at_target)
        if spread:
            even = (grad * spread).unsqueeze(class_dim)
            out -= even if local_weights is None else even * local_weights.view(per_class)
        return out.to(dtype), None, None, None, None, None, None, None
