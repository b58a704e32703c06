"""`build_optimizer`: a PyTorch optimizer over parallel and ordinary modules together."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nnscaler.config import ComputeConfig
from nnscaler.errors import InputError
from nnscaler.flags import RuntimeFlag
from nnscaler.runtime import gnorm
from nnscaler.runtime.mesh import world_rank, world_size
from nnscaler.runtime.module import ParallelModule, ParamsInfo
from nnscaler.runtime.reducer import Reducer

EXTRA_STATE_KEY = ParallelModule.EXTRA_STATE_KEY


def build_optimizer(
    module: nn.Module,
    optimizer_fn: Callable[..., torch.optim.Optimizer],
    compute_config: ComputeConfig | None = None,
    param_clss_fn: Callable[[str], Any] | None = None,
    **kwargs,
) -> torch.optim.Optimizer:
    """Makes an optimizer for a module that is parallel or has parallel modules in it.

    Parameters stay what they are, each with its name in ``module``, so parameter groups are built
    as ever. Those outside of parallel modules are taken to be alike on all ranks: their gradients
    are added up over the scale units, not over the ranks of a plan. All ranks of the job make the
    optimizer and call its methods together.

    Args:
        module: the parallel module, or a module that holds some.
        optimizer_fn: called with the list of trainable parameters, in the order of
            ``module.parameters()``, and ``kwargs``. Where its ``is_hybrid`` is True, also with
            each parameter's class.
        compute_config: settings of the reduction of ordinary parameters; None: the defaults.
        param_clss_fn: name -> class; a gradient bucket has one class only. The parallel modules
            must have been made with ``build_buckets=False`` then.
        kwargs: passed on.

    Returns:
        The optimizer, with the methods of `ParallelOptimizer` added.

    Raises:
        RuntimeError: there is no parallel module or nothing to train; parallel modules are made
            for different numbers of devices; one with ``use_end2end`` is inside another module.
    """
    modules = {name: m for name, m in module.named_modules() if isinstance(m, ParallelModule)}
    if not modules:
        raise RuntimeError("build_optimizer: there is no parallel module; call parallelize first")
    config = _check_configs(module, modules, compute_config)
    owned = {id(p) for m in modules.values() for p in m.parameters()}
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise RuntimeError("build_optimizer: no parameter requires a gradient")
    classes = {p: param_clss_fn(name) for name, p in named} if param_clss_fn else None
    for m in modules.values():
        m.check_trainable()
        if not m._built:
            m.build_buckets(classes)
        elif param_clss_fn is not None:
            raise RuntimeError(
                "build_optimizer: param_clss_fn needs modules made with build_buckets=False"
            )
    params = [p for _, p in named]
    if getattr(optimizer_fn, "is_hybrid", False) is True:
        if param_clss_fn is None:
            raise ValueError("build_optimizer: a hybrid optimizer needs param_clss_fn")
        optimizer = optimizer_fn(params, classes, **kwargs)
    else:
        optimizer = optimizer_fn(params, **kwargs)

    loose = [(name, p) for name, p in named if id(p) not in owned]
    kind = type(optimizer)
    optimizer.__class__ = type(
        kind.__name__, (ParallelOptimizer, kind), {"__module__": kind.__module__}
    )
    optimizer._attach(
        module, modules, loose, _loose_reducer(loose, classes, config, compute_config)
    )
    RuntimeFlag.skip_zero_grad = False
    return optimizer


def _check_configs(
    module: nn.Module, modules: dict[str, ParallelModule], given: ComputeConfig | None
) -> ComputeConfig:
    first_name, first = next(iter(modules.items()))
    first_name = first_name or "the module"
    for name, m in modules.items():
        if m.compute_config.use_end2end and m is not module:
            raise RuntimeError(
                f"build_optimizer: {name} has use_end2end and is inside another module; an end to "
                "end module is a whole model"
            )
        if m.compute_config.gpu_config != first.compute_config.gpu_config:
            raise RuntimeError(
                f"build_optimizer: {first_name} is for {first.compute_config.gpu_config} and {name} "
                f"for {m.compute_config.gpu_config}; all parallel modules need the same"
            )
    if given is not None and given.gpu_config != first.compute_config.gpu_config:
        raise RuntimeError(
            f"build_optimizer: compute_config is for {given.gpu_config} and {first_name} for "
            f"{first.compute_config.gpu_config}"
        )
    return first.compute_config


def _loose_reducer(loose, classes, config: ComputeConfig, given: ComputeConfig | None):
    """The reducer of ordinary parameters over the scale units; None for one unit."""
    if not loose or config.num_scale_units == 1:
        return None
    plan = config.plan_ngpus
    reducer = Reducer(
        range(world_rank() % plan, config.runtime_ngpus, plan),
        max_bucket_size_bytes=given.max_bucket_size_bytes if given else None,
        async_op=given.use_async_reducer if given else False,
        field="reduce(units)",
    )
    for _, p in loose:
        reducer.add_param(p)
    reducer.build_buckets(classes)
    return reducer


class ParallelOptimizer:
    """What `build_optimizer` adds to an optimizer; all ranks call these methods together.

    **When gradients are reduced.** `step`, `clip_gnorm` and `sync_shard_grad` reduce unless that
    was done since the last `step` or `zero_grad`, and no forward came since. So every rank reduces
    once a step, whether or not it had a batch or used all modules: a rank without gradients adds
    nothing.
    """

    def _attach(self, module, modules, loose, reducer) -> None:
        self._module = module
        self._modules: dict[str, ParallelModule] = modules
        self._loose: list[tuple[str, nn.Parameter]] = loose
        self._non_parallel_module_reducer: Reducer | None = reducer
        self._reduced = False  # Since the last step or zero_grad.
        self._loose_sums = False  # Gradients of ordinary parameters are sums of all units.
        self._loose_checked = not loose or world_size() == 1
        gnorm.live_optimizers.add(self)
        self._all_end2end = all(m.compute_config.use_end2end for m in modules.values())
        if loose:
            owners = {module} | {
                m
                for m in module.modules()
                if any(p.requires_grad for p in m.parameters(recurse=False))
            }
            inside = {m for p in modules.values() for m in p.modules()}
            for owner in owners - inside:
                owner.register_forward_pre_hook(self._forward_begins)

    def _forward_begins(self, *_) -> None:
        if torch.is_grad_enabled():
            self._reduced = False
            if self._loose_sums and self._non_parallel_module_reducer is not None:
                self._non_parallel_module_reducer.hold_reduced()
            self._loose_sums = False

    def _reducers(self) -> Iterable[Reducer]:
        for module in self._modules.values():
            yield from module.reducers
        if self._non_parallel_module_reducer is not None:
            yield self._non_parallel_module_reducer

    @property
    def parallel_modules(self) -> list[ParallelModule]:
        """The parallel modules that it trains."""
        return list(self._modules.values())

    @property
    def _synced(self) -> bool:
        pending = any(m._need_sync for m in self._modules.values())
        return not pending and (self._reduced or self._all_end2end)

    def step(self, closure: Callable | None = None, **kwargs):
        """Reduces the gradients and updates the parameters.

        Args:
            closure: as in PyTorch; it must call `sync_shard_grad` itself then.
        """
        if closure is None:
            self.sync_shard_grad()
            result = super().step(**kwargs)
        else:
            result = super().step(closure, **kwargs)
        self._reduced = False
        return result

    step.hooked = True  # PyTorch's hooks around step are on the class that this one extends.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops all gradients; does nothing while ``RuntimeFlag.skip_zero_grad`` is set."""
        if RuntimeFlag.skip_zero_grad:
            return
        for reducer in self._reducers():
            if set_to_none:
                reducer.zero_grad()
            else:
                reducer.drop()
        super().zero_grad(set_to_none)
        self._reduced = self._loose_sums = False

    def sync_shard_grad(self) -> None:
        """Adds up the gradients of all ranks; see the class."""
        if self._synced:
            return
        if not self._loose_checked:
            self._check_loose()
        for module in self._modules.values():
            module.sync_grad(force=not module.compute_config.use_end2end)
        if self._non_parallel_module_reducer is not None:
            self._non_parallel_module_reducer.sync_grads()
            self._loose_sums = True
        self._reduced = True

    @torch.no_grad()
    def _check_loose(self) -> None:
        """Raises, once, where ordinary parameters are not alike on all ranks."""
        sums = torch.stack([p.double().sum() for _, p in self._loose])
        all_sums = [torch.empty_like(sums) for _ in range(world_size())]
        dist.all_gather(all_sums, sums)
        for rank, other in enumerate(all_sums):
            unlike = ~((other == all_sums[0]) | (other.isnan() & all_sums[0].isnan()))
            if bool(unlike.any()):
                name = self._loose[int(unlike.nonzero()[0])][0]
                raise InputError(
                    f"{name}, outside of parallel modules, has other values on rank {rank} than on "
                    "rank 0; seed all ranks alike, or call nnscaler.broadcast_weights(module)"
                )
        self._loose_checked = True

    def _params_infos(self) -> list[ParamsInfo]:
        infos = [i for m in self._modules.values() for i in m.parameters_for_calc_gnorm()]
        if self._loose:
            names, params = zip(*self._loose, strict=True)
            infos.append(ParamsInfo(tuple(range(world_size())), list(params), list(names)))
        return infos

    def clip_gnorm(self, max_norm: float | None = None) -> torch.Tensor:
        """Reduces the gradients and clips them to a norm.

        Args:
            max_norm: the largest norm; None or at most 0 only measures.

        Returns:
            The norm of all gradients before clipping, each weight counted once, alike on all ranks.
        """
        self.sync_shard_grad()
        return gnorm.clip(self._params_infos(), max_norm)[0]

    def scale_grads(self, scale: float | torch.Tensor) -> None:
        """Multiplies all gradients.

        Raises:
            RuntimeError: they are not reduced yet.
        """
        if not self._synced:
            raise RuntimeError("scale_grads: call sync_shard_grad() first")
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        for grad in grads:
            grad.mul_(scale)

    def register_reducer_pre_hook(self, fn: Callable[[Reducer, torch.Tensor], None]) -> None:
        """Calls ``fn(reducer, flat gradients)`` before each bucket is reduced."""
        for reducer in self._reducers():
            reducer.register_pre_hook(partial(fn, reducer))

    def register_reducer_post_hook(self, fn: Callable[[Reducer, torch.Tensor], None]) -> None:
        """Calls ``fn(reducer, flat gradients)`` after each bucket is reduced."""
        for reducer in self._reducers():
            reducer.register_post_hook(partial(fn, reducer))

    # State dicts.

    @property
    def _extra_state(self) -> dict:
        """What `merge_state_dicts` must know of this rank's shard: plain values."""
        names = {id(p): name for name, p in self._module.named_parameters()}
        listed = [names[id(p)] for group in self.param_groups for p in group["params"]]
        locs = {}
        for prefix in self._modules:
            places = [i for i, name in enumerate(listed) if _inside(name, prefix)]
            locs[prefix] = {"offset": places[0] if places else 0, "count": len(places)}
        return {
            "rank": world_rank(),
            "name": type(self).__name__,
            "param_names": listed,
            "origin_param_names": origin_param_names(self._module),
            "parallel_module_locs": locs,
            "parallel_module_configs": {
                prefix: m.compute_config.plain() for prefix, m in self._modules.items()
            },
            "plan_digests": {prefix: m.layout_digest() for prefix, m in self._modules.items()},
        }

    def state_dict(self) -> dict:
        """PyTorch's state of this rank's parts, and what is needed to merge it."""
        state = super().state_dict()
        state[EXTRA_STATE_KEY] = self._extra_state
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Loads this rank's shard, or a merged state, of which it takes its parts.

        Raises:
            InputError: a shard of another plan or another rank.
        """
        from nnscaler.checkpoint import cut_optimizer_state

        state_dict = dict(state_dict)
        extra = state_dict.pop(EXTRA_STATE_KEY, None)
        if extra is None:
            state_dict = cut_optimizer_state(self._module, self, state_dict)
            state_dict.pop(EXTRA_STATE_KEY)
        else:
            self._check_shard(extra)
        super().load_state_dict(state_dict)

    def _check_shard(self, extra: dict) -> None:
        mine = self._extra_state
        if (
            extra["plan_digests"] != mine["plan_digests"]
            or extra["param_names"] != mine["param_names"]
        ):
            raise InputError(
                f"optimizer.load_state_dict: the shard was made under plan {extra['plan_digests']} "
                f"with {len(extra['param_names'])} parameters and this optimizer runs plan "
                f"{mine['plan_digests']} with {len(mine['param_names'])}; merge the shards of all "
                "ranks with nnscaler.merge_state_dicts and load the result"
            )
        size = next(iter(self._modules.values())).mesh.size
        if extra["rank"] % size != world_rank() % size:
            raise InputError(
                f"optimizer.load_state_dict: this is the shard of rank {extra['rank']} and rank "
                f"{world_rank()} loads it; load each rank's own"
            )


def _inside(name: str, prefix: str) -> bool:
    return not prefix or name.startswith(prefix + ".")


def origin_param_names(module: nn.Module) -> list[str]:
    """Names of the original model's parameters, each once, in its order."""
    names, done = [], set()
    for path, part in module.named_modules():
        if any(_inside(path, prefix) for prefix in done):
            continue
        start = f"{path}." if path else ""
        if isinstance(part, ParallelModule):
            done.add(path)
            names += [start + n for n in part.origin_module_metadata["origin_param_names"]]
        else:
            names += [start + name for name, _ in part.named_parameters(recurse=False)]
    own = {
        id(p): name for name, p in reversed(list(module.named_parameters(remove_duplicate=False)))
    }
    alias = {name: own[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    return list(dict.fromkeys(alias.get(name, name) for name in names))
