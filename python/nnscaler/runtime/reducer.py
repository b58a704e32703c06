"""Adds up the gradients of parameters whose copies saw different data.

A reducer has the parameters of one process group, in buckets of one dtype. A bucket's gradients
lie in one flat buffer, each parameter's ``grad`` being a view of it after the reduction, so a
bucket is one collective and the gradients are copied once. They are summed, never averaged.

Two modes. By default all buckets are reduced by `Reducer.sync_grads`, at ``optimizer.step()``.
With ``async_op`` a bucket is started as soon as backward has its last gradient.

**A parameter may lack a gradient on some ranks.** Behind the gradients of a bucket stand as many
numbers as it has parameters: 1 where this rank has a gradient, else 0. They are summed with the
rest. A rank that has all gradients need not look at them; a rank that lacks some learns from the
sums whether another rank had them (then the sum is everybody's gradient) or nobody (then
``grad`` stays None, so that optimizers skip the parameter as they do on one device). Every rank
reduces every bucket, in the order of the buckets, whatever it has: nothing can hang or get out of
step. In ``async_op`` mode the reducer has a process group of its own for the same reason.

**Accumulation.** Several backward passes before a reduction add up in ``grad`` on each rank. When a
backward pass follows a reduction without zeroing, the reduced gradient must not be added up again:
`hold_reduced` leaves it on the first rank alone, so that the next sum has it once.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from nnscaler.errors import UnsupportedError
from nnscaler.flags import RuntimeFlag
from nnscaler.runtime import comm
from nnscaler.runtime.mesh import group_of, new_group, world_rank

DEFAULT_ASYNC_BUCKET_BYTES = 25 * 2**20
_ALIGN = 64  # bytes
_ABSORB_BYTES = 2**20  # Gradients from this size on move into their buffer during backward.

Hook = Callable[[torch.Tensor], None]


class Bucket:
    """Parameters that are reduced together; see the module's description."""

    def __init__(self, params: list[torch.nn.Parameter], reducer: "Reducer"):
        self.params = params
        self._reducer = reducer
        self._pending: comm.Pending | None = None
        self._missing: list[int] = []
        self.reduced = False  # `grad`s hold the sums of all ranks.
        self.payload = sum(p.numel() for p in params) * params[0].element_size()
        step = max(1, _ALIGN // params[0].element_size())
        self._starts, self.numel = [], 0
        for p in params:
            self._starts.append(self.numel)
            self.numel += -(-p.numel() // step) * step
        self._flat: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []

    def _allocate(self) -> None:
        first = self.params[0]
        self._flat = first.new_zeros(self.numel + len(self.params))
        self._views = [
            self._flat[start : start + p.numel()].view(p.shape)
            for start, p in zip(self._starts, self.params, strict=True)
        ]

    def absorb(self, index: int) -> None:
        """Moves one gradient into the buffer now, so that its own memory is free."""
        p = self.params[index]
        if self._flat is None or self._flat.device != p.device:
            self._allocate()
        view = self._views[index]
        if p.grad is not view and p.grad.layout is torch.strided:
            view.copy_(p.grad)
            p.grad = view

    def free(self) -> None:
        """Gives the buffer back; it is made again when needed."""
        self._flat, self._views = None, []
        self.reduced = False

    def start(self) -> None:
        """Copies the gradients into the buffer and starts the reduction."""
        if self._flat is None or self._flat.device != self.params[0].device:
            self._allocate()
        elif self.reduced:  # No backward on this rank since: the sums must count once.
            self._hold()
        views, grads, missing = [], [], []
        for i, (p, view) in enumerate(zip(self.params, self._views, strict=True)):
            grad = p.grad
            if grad is None:
                missing.append(i)
                view.zero_()
            elif grad is not view:
                if grad.layout is not torch.strided:
                    raise UnsupportedError(
                        f"gradient of a parameter {tuple(p.shape)} is sparse; nnscaler reduces "
                        "dense gradients only: use sparse=False"
                    )
                views.append(view)
                grads.append(grad)
                p.grad = view
        if grads:
            torch._foreach_copy_(views, grads)
        flags = self._flat[self.numel :]
        flags.fill_(1)
        for i in missing:
            flags[i] = 0
        self._missing = missing
        for hook in self._reducer.pre_hooks:
            hook(self._flat[: self.numel])
        self._pending = comm.start_all_reduce(
            self._flat,
            self._reducer.group,
            self._reducer.field,
            self.payload,
            overlaps=self._reducer.async_op,
        )

    @property
    def started(self) -> bool:
        """Whether a reduction is under way."""
        return self._pending is not None

    def finish(self) -> None:
        """Waits for the reduction; ``grad``s are the sums afterwards, or None where no rank has one."""
        self._pending.wait()
        self._pending = None
        scale = self._reducer.nreplicas
        if scale > 1:
            self._flat[: self.numel].div_(scale)
        for hook in self._reducer.post_hooks:
            hook(self._flat[: self.numel])
        if self._missing:
            counts = self._flat[self.numel :].tolist()
            for i in self._missing:
                if counts[i]:
                    self.params[i].grad = self._views[i]
        self.reduced = True

    def _hold(self) -> None:
        if self._reducer.is_first and self._reducer.nreplicas == 1:
            return
        for p, view in zip(self.params, self._views, strict=True):
            if p.grad is view and not self._reducer.is_first:
                view.zero_()
            elif p.grad is view:
                view.mul_(self._reducer.nreplicas)

    def hold_reduced(self) -> None:
        """Leaves sums on the first rank alone, as more gradients are to come."""
        if self.reduced:
            self._hold()
            self.reduced = False

    def drop(self) -> None:
        """Waits for a reduction under way without using it."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        self.reduced = False


class Reducer:
    """Sums the gradients of some parameters over some ranks.

    Args:
        ranks: ranks of the job, this one included.
        max_bucket_size_bytes: a bucket's size; None or 0 is 25 MiB with ``async_op``, otherwise
            unlimited.
        reduce_op: ``sum``; nothing else is offered.
        async_op: reduce during backward.
        nreplicas: so many ranks contribute equal gradients: the sum is divided by it.
        field: name for the timer.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        *,
        max_bucket_size_bytes: int | None = None,
        reduce_op: str = "sum",
        async_op: bool = False,
        nreplicas: int = 1,
        field: str = "reduce",
    ):
        if reduce_op != "sum":
            raise UnsupportedError(f"reducer: reduce_op {reduce_op!r} is not offered; use 'sum'")
        self.ranks = tuple(sorted(ranks))
        self.reduce_op = reduce_op
        self.zero, self.zero3, self.zero_ngroups = 0, False, 1
        self.nreplicas = nreplicas
        self.field = field
        self.params: list[torch.nn.Parameter] = []
        self.buckets: list[Bucket] = []
        self.pre_hooks: list[Hook] = []
        self.post_hooks: list[Hook] = []
        self.grad_accumulation_steps = 1
        self.is_first = world_rank() == self.ranks[0]
        self.async_op = async_op
        self._cap = max_bucket_size_bytes or (DEFAULT_ASYNC_BUCKET_BYTES if async_op else 0)
        self._next = 0  # In async mode buckets before this one have been started.
        self._todo: list[int] = []  # Gradients that each bucket waits for.
        self._counts: dict[torch.nn.Parameter, int] = {}
        self._place_of: dict[torch.nn.Parameter, tuple[int, int]] = {}  # bucket, place in it
        self.group: dist.ProcessGroup | None = None
        if len(self.ranks) > 1:
            self.group = new_group(self.ranks) if async_op else group_of(self.ranks)

    @property
    def numel(self) -> int:
        """Elements of all parameters."""
        return sum(p.numel() for p in self.params)

    def add_param(self, param: torch.nn.Parameter) -> None:
        """Takes a parameter in; before `build_buckets`."""
        self.params.append(param)

    def build_buckets(self, param_clss: dict | None = None) -> None:
        """Puts the parameters into buckets, the last first, as backward comes by them.

        Args:
            param_clss: parameter -> class; a bucket has one class only.
        """
        open_buckets: dict[object, list[torch.nn.Parameter]] = {}
        sizes: dict[object, int] = {}
        found: list[list[torch.nn.Parameter]] = []
        for p in reversed(self.params):
            key = (p.dtype, p.device, (param_clss or {}).get(p))
            nbytes = p.numel() * p.element_size()
            if key not in open_buckets or (self._cap and sizes[key] + nbytes > self._cap):
                open_buckets[key], sizes[key] = [], 0
                found.append(open_buckets[key])
            open_buckets[key].append(p)
            sizes[key] += nbytes
        self.buckets = [Bucket(params, self) for params in found]
        self._place_of = {
            p: (i, j) for i, bucket in enumerate(self.buckets) for j, p in enumerate(bucket.params)
        }
        self._rewind()
        for p in self.params:
            if self.async_op or p.numel() * p.element_size() >= _ABSORB_BYTES:
                p.register_post_accumulate_grad_hook(self._arrived)

    # During backward.

    def _rewind(self) -> None:
        self._next = 0
        self._todo = [len(bucket.params) for bucket in self.buckets]
        self._counts = {}

    def _arrived(self, param: torch.nn.Parameter) -> None:
        index, place = self._place_of[param]
        if not self.async_op or RuntimeFlag.skip_reducer:
            if param.numel() * param.element_size() >= _ABSORB_BYTES:
                self.buckets[index].absorb(place)
            return
        if index < self._next:
            raise RuntimeError(
                "a gradient came after its bucket was reduced: with use_async_reducer put "
                "nnscaler.sync_grad_when(False) around all but the last microbatch, or call "
                "set_grad_accumulation_steps"
            )
        count = self._counts.get(param, 0) + 1
        self._counts[param] = count
        if count != self.grad_accumulation_steps:
            return
        self._todo[index] -= 1
        while self._next < len(self.buckets) and self._todo[self._next] == 0:
            self.buckets[self._next].start()
            self._next += 1

    # At the end of a step.

    def sync_grads(self) -> None:
        """Reduces what is not reduced yet and waits for all."""
        for bucket in self.buckets:
            if not bucket.started:
                bucket.start()
        for bucket in self.buckets:
            bucket.finish()
        self._rewind()

    def hold_reduced(self) -> None:
        """More gradients are to come: see the module's description."""
        for bucket in self.buckets:
            bucket.hold_reduced()

    def zero_grad(self) -> None:
        """Drops the gradients, and reductions under way."""
        self.drop()
        for p in self.params:
            p.grad = None

    def drop(self) -> None:
        """Waits for reductions under way without using them."""
        if self._counts:  # Another rank may have started buckets that wait for this one here.
            for bucket in self.buckets:
                if not bucket.started:
                    bucket.start()
        for bucket in self.buckets:
            bucket.drop()
        self._rewind()

    def free(self) -> None:
        """Gives the buffers back."""
        self.drop()
        for bucket in self.buckets:
            bucket.free()

    def gather_params(self) -> None:
        """Nothing to do: weights are not sharded by the optimizer."""

    def parameters_for_optimizer(self) -> list[torch.nn.Parameter]:
        """The parameters themselves."""
        return list(self.params)

    def get_opt_params(self) -> dict[torch.nn.Parameter, object]:
        """The parameters, without a class."""
        return dict.fromkeys(self.params)

    def broadcast_params(self) -> None:
        """Copies the first rank's values to all."""
        for p in self.params:
            comm.broadcast(p.data, self.ranks[0], self.group)

    def register_pre_hook(self, fn: Hook) -> None:
        """Calls ``fn(flat gradients)`` before each bucket's reduction; it may change them."""
        self.pre_hooks.append(fn)

    def register_post_hook(self, fn: Hook) -> None:
        """Calls ``fn(flat gradients)`` after each bucket's reduction; it may change them."""
        self.post_hooks.append(fn)

    def clear_pre_hooks(self) -> None:
        """Forgets the hooks before."""
        self.pre_hooks.clear()

    def clear_post_hooks(self) -> None:
        """Forgets the hooks after."""
        self.post_hooks.clear()
