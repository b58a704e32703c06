"""The norm of all gradients of a job, each weight counted once, whatever its layout.

`torch.nn.utils.clip_grad_norm_`, ``get_total_norm`` and ``clip_grad_value_`` know nothing of other
ranks: on a parallel module each rank would clip by its own part. `install` puts ours into the
functions themselves, so that a reference taken before the import is right too: gradients that
belong to a parallel module are then reduced first and counted over all ranks. All ranks must call
them, then, as they call ``optimizer.clip_gnorm``.
"""

import functools
import math
import weakref
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.nn.utils.clip_grad as torch_clip

from nnscaler.errors import InternalError
from nnscaler.runtime import comm
from nnscaler.runtime.mesh import wire_device, world_size

live_optimizers: "weakref.WeakSet" = weakref.WeakSet()  # Made by build_optimizer.


def total_norm(
    groups: Iterable[tuple[list[torch.Tensor], int]], norm_type: float = 2.0
) -> torch.Tensor:
    """Norm over all ranks; all of them must call this.

    Args:
        groups: gradients of this rank, and the number of ranks that hold them alike.
        norm_type: order of the norm; inf for the largest value.

    Returns:
        A float32 number (float64 where a gradient is) on this rank's device, alike on all ranks.
    """
    norm_type = float(norm_type)
    largest = math.isinf(norm_type)
    total, dtype, device = None, torch.float32, None
    for grads, replicas in groups:
        if not grads:
            continue
        device = device or grads[0].device
        if any(g.dtype == torch.float64 for g in grads):
            dtype = torch.float64
        norms = torch.cat([n.to(device, torch.float64) for n in _norms(grads, norm_type)])
        part = norms.max() if largest else norms.pow(norm_type).sum() / replicas
        if total is None:
            total = part
        else:
            total = torch.maximum(total, part) if largest else total + part
    if total is None:
        total = torch.zeros((), dtype=torch.float64, device=wire_device())
    if world_size() > 1:
        op = comm.MAX if largest else comm.SUM
        comm.all_reduce(total, dist.group.WORLD, "all_reduce(norm)", op)
    return (total if largest else total.pow(1.0 / norm_type)).to(dtype)


def _norms(grads: list[torch.Tensor], norm_type: float) -> Iterable[torch.Tensor]:
    """Norms of tensors, a vector for each device and dtype; halves are added up in float32."""
    by_kind: dict[tuple, list[torch.Tensor]] = {}
    for grad in grads:
        by_kind.setdefault((grad.device, grad.dtype), []).append(grad)
    for (_, dtype), same in by_kind.items():
        half = dtype in (torch.float16, torch.bfloat16)
        yield torch.stack(torch._foreach_norm(same, norm_type, torch.float32 if half else None))


def scale_to(grads: list[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Multiplies gradients by ``max_norm / (norm + 1e-6)`` where that is below 1."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    by_kind: dict[tuple, list[torch.Tensor]] = {}
    for grad in grads:
        by_kind.setdefault((grad.device, grad.dtype), []).append(grad)
    for (device, _), same in by_kind.items():
        torch._foreach_mul_(same, factor.to(device))


@torch.no_grad()
def clip(infos: list, max_norm: float | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Norm of the gradients of `ParamsInfo` groups, clipped where ``max_norm`` is positive."""
    groups = [([p.grad for p in i.params if p.grad is not None], len(i.ranks)) for i in infos]
    norm = total_norm(groups)
    grads = [grad for group, _ in groups for grad in group]
    if max_norm is not None and max_norm > 0 and grads:
        scale_to(grads, norm, max_norm)
    return norm, grads


# PyTorch's own functions.


def _reduce_for(params: list[torch.Tensor]) -> None:
    """Reduces the gradients of the optimizers and parallel modules that have some of ``params``."""
    from nnscaler.runtime.module import live_modules

    wanted = {id(p) for p in params}
    done: set = set()
    for optimizer in live_optimizers:
        if any(id(p) in wanted for group in optimizer.param_groups for p in group["params"]):
            optimizer.sync_shard_grad()
            done |= set(optimizer.parallel_modules)
    for module in live_modules:
        if module not in done and any(id(p) in wanted for p in module.parameters()):
            module.sync_grad()


def _replicas_of_grads() -> dict[int, int]:
    """id of a gradient of a parallel module -> number of ranks that hold it alike."""
    from nnscaler.runtime.module import live_modules

    found = {}
    for module in live_modules:
        for info in module.parameters_for_calc_gnorm():
            found.update((id(p.grad), len(info.ranks)) for p in info.params if p.grad is not None)
    return found


def _reduced_first(original: Callable) -> Callable:
    @functools.wraps(original)
    def function(parameters, *args, **kwargs):
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        parameters = list(parameters)
        _reduce_for(parameters)
        return original(parameters, *args, **kwargs)

    return function


def _over_ranks(original: Callable) -> Callable:
    @functools.wraps(original)
    def function(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        replicas = _replicas_of_grads()
        if not any(id(t) in replicas for t in tensors):
            return original(tensors, norm_type, error_if_nonfinite, foreach)
        by_count: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:  # What belongs to no parallel module is alike on all ranks.
            by_count.setdefault(replicas.get(id(tensor), world_size()), []).append(tensor)
        norm = total_norm([(grads, count) for count, grads in by_count.items()], norm_type)
        if error_if_nonfinite and not bool(norm.isfinite()):
            raise RuntimeError(
                f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be "
                "clipped. To disable this error set error_if_nonfinite=False"
            )
        return norm

    return function


def install() -> None:
    """Makes PyTorch's gradient clipping right for parallel modules; see the module's description."""
    for name, wrap in (
        ("clip_grad_norm_", _reduced_first),
        ("clip_grad_value_", _reduced_first),
        ("_get_total_norm", _over_ranks),
    ):
        wrapper = getattr(torch_clip, name)
        original = wrapper.__wrapped__
        if getattr(original, "nnscaler_wrapped", False):
            continue
        cells = [c for c in wrapper.__closure__ or () if c.cell_contents is original]
        if not cells:
            raise InternalError(f"torch.nn.utils.clip_grad.{name} is not built as expected")
        ours = wrap(original)
        ours.nnscaler_wrapped = True
        cells[0].cell_contents = ours
        wrapper.__wrapped__ = ours
