"""State dicts of all ranks, and of none.

Three forms. *Sharded*: ``module.state_dict()`` and ``optimizer.state_dict()`` of each rank; they
fit the same plan only. *Deduped*: the same without what another rank stores. *Merged*: the original
model's own state dict, and the state of ``torch.optim`` over its ``parameters()``; it fits any
plan, and no plan. Only plain values and tensors are in any of them, so that
``torch.load(weights_only=True)`` reads them.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nnscaler.errors import InputError, UnsupportedError
from nnscaler.runtime import comm
from nnscaler.runtime.mesh import current_device, group_of, wire_device, world_rank, world_size
from nnscaler.runtime.module import ParallelModule

_logger = logging.getLogger(__name__)

EXTRA = ParallelModule.EXTRA_STATE_KEY
StateDict = dict[str, Any]


def _parallel_modules(module: nn.Module) -> dict[str, ParallelModule]:
    """Parallel modules by the prefix of their names: "" or "body."."""
    return {
        f"{path}." if path else "": m
        for path, m in module.named_modules()
        if isinstance(m, ParallelModule)
    }


# Merging.


def merge_state_dicts(
    module_state_dicts: list[StateDict],
    optimizer_state_dicts: list[StateDict] | None = None,
    *,
    tolerance: float = 0.0,
) -> tuple[StateDict, StateDict | None]:
    """Puts the shards of all ranks together: the original model's state dict, on the CPU.

    Needs neither a GPU nor torch.distributed.

    Args:
        module_state_dicts: of every rank from 0 on, sharded or deduped, in any order.
        optimizer_state_dicts: of the same ranks in the same order.
        tolerance: how far copies of one value may differ, relative to its largest element.

    Returns:
        What ``load_state_dict`` of the original model takes, strictly; and what that of a
        ``torch.optim`` optimizer over its ``parameters()`` takes, or None. A parameter that was
        never updated has no optimizer state. Several parameter groups list, each, the numbers of
        their parameters in the original order.

    Raises:
        InputError: ranks are missing, twice, or of different plans; copies of a value differ;
            something is missing.
    """
    shards = _sorted_shards(module_state_dicts, "module")
    model, areas = _merge_model(shards, tolerance)
    if optimizer_state_dicts is None:
        return model, None
    if len(optimizer_state_dicts) != len(module_state_dicts):
        raise InputError(
            f"merge_state_dicts: {len(module_state_dicts)} module and "
            f"{len(optimizer_state_dicts)} optimizer state dicts; give those of the same ranks"
        )
    for i, (m, o) in enumerate(zip(module_state_dicts, optimizer_state_dicts, strict=True)):
        if _rank_of(m, "module", i) != _rank_of(o, "optimizer", i):
            raise InputError(
                f"merge_state_dicts: number {i} is of rank {_rank_of(m, 'module', i)} in the module "
                f"and of rank {_rank_of(o, 'optimizer', i)} in the optimizer state dicts"
            )
    return model, _merge_optimizer(
        _sorted_shards(optimizer_state_dicts, "optimizer"), areas, tolerance
    )


def _extras(state: StateDict) -> dict[str, dict]:
    """Extra states by prefix."""
    return {key[: -len(EXTRA)]: value for key, value in state.items() if key.endswith(EXTRA)}


def _rank_of(state: StateDict, what: str, number: int) -> int:
    ranks = {extra["rank"] for extra in _extras(state).values()}
    if len(ranks) != 1:
        raise InputError(
            f"merge_state_dicts: {what} state dict number {number} has no rank ({EXTRA}); give "
            f"what state_dict() of a parallel module or its optimizer returned"
        )
    return ranks.pop()


def _sorted_shards(states: list[StateDict], what: str) -> list[StateDict]:
    if not states:
        raise InputError(f"merge_state_dicts: no {what} state dicts are given")
    by_rank: dict[int, StateDict] = {}
    for number, state in enumerate(states):
        rank = _rank_of(state, what, number)
        if rank in by_rank:
            raise InputError(f"merge_state_dicts: Duplicate rank {rank} in the {what} state dicts")
        by_rank[rank] = state
    first = next(iter(_extras(states[0]).values()))
    configs = first.get("parallel_module_configs") or {"": first.get("compute_config")}
    needed = max(config["plan_ngpus"] for config in configs.values())
    missing = [rank for rank in range(max(needed, len(states))) if rank not in by_rank]
    if missing:
        wrong = [rank for rank in by_rank if rank >= max(needed, len(states))]
        raise InputError(
            f"merge_state_dicts: {'Invalid rank ' + str(wrong[0]) + ', ' if wrong else ''}"
            f"{len(states)} {what} state dicts and none of rank "
            f"{', '.join(map(str, missing))}; give those of all ranks from 0 to "
            f"{max(needed, len(states)) - 1}"
        )
    return [by_rank[rank] for rank in sorted(by_rank)]


class _Whole:
    """A tensor put together from parts."""

    def __init__(self, name: str, shape: Iterable[int], dtype: torch.dtype, tolerance: float):
        self._name, self._tolerance = name, tolerance
        self.value = torch.empty(tuple(shape), dtype=dtype)
        self._have: dict[tuple, torch.Tensor] = {}
        self._covered = 0

    def put(self, part: torch.Tensor, slicers: list[list[int]], rank: int) -> None:
        key = tuple(map(tuple, slicers))
        part = part.detach().cpu()
        where = self.value[tuple(slice(*ends) for ends in slicers)]
        if part.shape != where.shape or part.dtype != self.value.dtype:
            raise InputError(
                f"merge_state_dicts: {self._name} of rank {rank} is {part.dtype} "
                f"{tuple(part.shape)}, and its place {self.value.dtype} {tuple(where.shape)}"
            )
        if key not in self._have:
            where.copy_(part)
            self._have[key] = where
            self._covered += part.numel()
        elif not torch.equal(part, where) and not self._close(part, where):
            raise InputError(
                f"merge_state_dicts: Conflict in merging {self._name} from rank {rank}: it differs "
                "from the copy of an earlier rank; if that is rounding, give tolerance="
            )

    def _close(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        if not (a.is_floating_point() or a.is_complex()):
            return False
        same_nan = torch.equal(a.isnan(), b.isnan())
        a, b = a.nan_to_num(), b.nan_to_num()
        return same_nan and bool((a - b).abs().max() <= self._tolerance * b.abs().max())

    @property
    def complete(self) -> bool:
        return self._covered == self.value.numel()

    @property
    def empty(self) -> bool:
        return not self._have


def _merge_model(shards: list[StateDict], tolerance: float) -> tuple[StateDict, list[dict]]:
    """The model's state dict, and for each rank: full name -> area (plain `AttrMeta`)."""
    first = _extras(shards[0])
    areas: list[dict] = []
    for rank, shard in enumerate(shards):
        extras = _extras(shard)
        areas.append({})
        for prefix, extra in extras.items():
            if extra["plan_digest"] != first[prefix]["plan_digest"]:
                raise InputError(
                    f"merge_state_dicts: {prefix or 'the module'} of rank {rank} was made under "
                    f"plan {extra['plan_digest']} (mesh {extra['mesh']}) and that of rank 0 under "
                    f"{first[prefix]['plan_digest']} (mesh {first[prefix]['mesh']})"
                )
            areas[rank].update(
                (prefix + name, area) for name, area in extra["param_area_map"].items()
            )
    merged: StateDict = {}
    pending = sorted(first, key=len)
    for key in dict.fromkeys(key for shard in shards for key in shard):
        prefix = next((p for p in pending if key.startswith(p)), None)
        if prefix is None:
            if not any(key.startswith(p) for p in first):
                value = next(shard[key] for shard in shards if key in shard)
                merged[key] = value.detach().cpu() if isinstance(value, torch.Tensor) else value
            continue
        pending.remove(prefix)
        _merge_module(prefix, first[prefix], shards, areas, tolerance, merged)
    return merged, areas


def _merge_module(prefix, extra, shards, areas, tolerance, merged: StateDict) -> None:
    """Adds the whole tensors of one parallel module."""
    plan = extra["compute_config"]["plan_ngpus"]
    ties = extra["origin_shared_param_names"]
    done: dict[str, torch.Tensor] = {}
    for name in extra["origin_state_dict_names"]:
        same = next((tie for tie in ties if name in tie), [name])
        known = next((done[other] for other in same if other in done), None)
        if known is None:
            stored = next((n for n in same if prefix + n in areas[0]), None)
            if stored is None:
                _logger.warning(
                    "merge_state_dicts: %s is in no shard and is left out", prefix + name
                )
                continue
            area = areas[0][prefix + stored]
            whole = _Whole(prefix + name, area["shape"], area["dtype"], tolerance)
            for rank in range(plan):
                value = shards[rank].get(prefix + stored)
                if value is not None:
                    whole.put(value, areas[rank][prefix + stored]["slicers"], rank)
            if not whole.complete:
                raise InputError(
                    f"merge_state_dicts: Uncovered parts of {prefix + name}; the state dicts of "
                    "some ranks lack it"
                )
            known = whole.value
        done[name] = merged[prefix + name] = known


def _merge_optimizer(shards: list[StateDict], areas: list[dict], tolerance: float) -> StateDict:
    extra = shards[0][EXTRA]
    origin = {name: i for i, name in enumerate(extra["origin_param_names"])}
    for shard in shards:
        if shard[EXTRA]["param_names"] != extra["param_names"]:
            raise InputError(
                f"merge_state_dicts: the optimizer of rank {shard[EXTRA]['rank']} has other "
                "parameters than that of rank 0"
            )
    state: dict[int, StateDict] = {}
    for place, name in enumerate(extra["param_names"]):
        merged = _merge_entry(name, place, shards, areas, tolerance)
        if merged is not None:
            state[origin[name]] = merged
    groups = []
    for group in shards[0]["param_groups"]:
        entry = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        numbers = sorted(origin[extra["param_names"][place]] for place in group["params"])
        entry["params"] = list(range(len(origin))) if _single(shards[0]) else numbers
        groups.append(entry)
    return {"state": dict(sorted(state.items())), "param_groups": groups}


def _single(state: StateDict) -> bool:
    return len(state["param_groups"]) == 1


def _merge_entry(name, place, shards, areas, tolerance) -> StateDict | None:
    """State of one parameter, whole; None where it has none."""
    plan = max(c["plan_ngpus"] for c in shards[0][EXTRA]["parallel_module_configs"].values())
    having = [r for r in range(min(plan, len(shards))) if place in shards[r]["state"]]
    if not having:
        return None
    entry = shards[having[0]]["state"][place]
    merged: StateDict = {}
    for key, value in entry.items():
        area = areas[0].get(name)
        if not isinstance(value, torch.Tensor):
            merged[key] = value
        elif area is None:  # Of an ordinary parameter: alike on all ranks.
            merged[key] = value.detach().cpu().clone()
        elif list(value.shape) == area["sub_shape"]:
            whole = _Whole(f"{key} of {name}", area["shape"], value.dtype, tolerance)
            for rank in having:
                whole.put(shards[rank]["state"][place][key], areas[rank][name]["slicers"], rank)
            if not whole.complete:
                raise InputError(
                    f"merge_state_dicts: Incomplete optimizer state for parameter {name}: {key} is "
                    "missing on some ranks"
                )
            merged[key] = whole.value
        elif value.numel() == 1:
            merged[key] = value.detach().cpu().clone()
        else:
            raise UnsupportedError(
                f"merge_state_dicts: {key} of {name} is {tuple(value.shape)} and the parameter's "
                f"part {tuple(area['sub_shape'])}; only state shaped like the parameter, or one "
                "number, can be merged: Adam, SGD, Muon and the like"
            )
    return merged


# Cutting: from the merged form to a rank's shard.


def _cut_value(value: torch.Tensor, area: dict, name: str) -> torch.Tensor:
    if list(value.shape) != area["shape"]:
        raise InputError(
            f"{name} has shape {tuple(value.shape)} in the state dict and the whole parameter has "
            f"{tuple(area['shape'])}"
        )
    return value[tuple(slice(*ends) for ends in area["slicers"])]


def _cut_model(merged: StateDict, extras: dict[str, dict]) -> StateDict:
    """The sharded form of a merged model for the rank whose extra states these are."""
    result: StateDict = {}
    areas = {p + n: area for p, e in extras.items() for n, area in e["param_area_map"].items()}
    for name, value in merged.items():
        result[name] = _cut_value(value, areas[name], name) if name in areas else value
    for prefix, extra in extras.items():
        for tie in extra["origin_shared_param_names"]:
            given = next((n for n in tie if prefix + n in result), None)
            for name in tie if given is not None else ():
                result.setdefault(prefix + name, result[prefix + given])
        result[prefix + EXTRA] = extra
    return result


def _cut_optimizer(merged: StateDict, own: StateDict, extras: dict[str, dict]) -> StateDict:
    """The sharded form of a merged optimizer state.

    Args:
        merged: of `merge_state_dicts` or of torch.optim on the original model.
        own: the rank's optimizer state dict, of which names and groups count.
        extras: extra states of its parallel modules, by prefix.
    """
    extra = own[EXTRA]
    listed, origin = extra["param_names"], extra["origin_param_names"]
    areas = {p + n: area for p, e in extras.items() for n, area in e["param_area_map"].items()}
    number_of = {name: i for i, name in enumerate(origin)}
    if len(merged["param_groups"]) != len(own["param_groups"]):
        raise InputError(
            f"optimizer state: it has {len(merged['param_groups'])} parameter groups and the "
            f"optimizer {len(own['param_groups'])}; build the optimizer with the same groups"
        )
    state: dict[int, StateDict] = {}
    groups = []
    for theirs, mine in zip(merged["param_groups"], own["param_groups"], strict=True):
        names = sorted((listed[place] for place in mine["params"]), key=number_of.__getitem__)
        if _single(own) and len(theirs["params"]) == len(origin):
            names = origin
        if len(names) != len(theirs["params"]):
            raise InputError(
                f"optimizer state: a parameter group has {len(theirs['params'])} parameters and "
                f"the optimizer's {len(names)}; build the optimizer with the same groups"
            )
        place_of = {listed[place]: place for place in mine["params"]}
        for name, number in zip(names, theirs["params"], strict=True):
            if name in place_of and number in merged["state"]:
                state[place_of[name]] = {
                    key: _cut_entry(value, areas.get(name), f"{key} of {name}")
                    for key, value in merged["state"][number].items()
                }
        rest = {k: v for k, v in theirs.items() if k not in ("params", "param_names")}
        groups.append({**mine, **rest, "params": list(mine["params"])})
    return {"state": state, "param_groups": groups, EXTRA: extra}


def _cut_entry(value: Any, area: dict | None, name: str) -> Any:
    """A rank's part of one value of an optimizer's state, in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    if area is None or (value.numel() == 1 and list(value.shape) != area["shape"]):
        return value.clone()
    return _cut_value(value, area, name).clone(memory_format=torch.contiguous_format)


def _own_extras(module: nn.Module) -> dict[str, dict]:
    return {prefix: m.extra_state() for prefix, m in _parallel_modules(module).items()}


def cut_optimizer_state(module: nn.Module, optimizer, merged: StateDict) -> StateDict:
    """This rank's shard of a merged optimizer state; see `build_optimizer`'s ``load_state_dict``."""
    return _cut_optimizer(merged, optimizer.state_dict(), _own_extras(module))


# Loading.


def load_merged_state_dict(
    module: nn.Module,
    module_state_dict: StateDict,
    optimizer: torch.optim.Optimizer | None = None,
    optimizer_state_dict: StateDict | None = None,
    *,
    device: torch.device | str | None = None,
) -> None:
    """Loads a merged state, or that of the original model; each rank takes its own parts.

    Args:
        module: the parallel module, or one that holds some.
        module_state_dict: whole tensors; names that the module has not are ignored.
        optimizer: what `build_optimizer` made.
        optimizer_state_dict: of `merge_state_dicts`, or of torch.optim on the original model.
        device: moves the optimizer's state there first; None leaves it to the optimizer, which
            keeps it where the parameters are.

    Raises:
        RuntimeError: a name is missing, or a shape differs.
    """
    _load_model(module, {k: v for k, v in module_state_dict.items() if not k.endswith(EXTRA)})
    if optimizer is not None and optimizer_state_dict is not None:
        shard = cut_optimizer_state(module, optimizer, optimizer_state_dict)
        optimizer.load_state_dict(_moved(shard, device))


def _load_model(module: nn.Module, state: StateDict, allowed: frozenset[str] = frozenset()) -> None:
    missing = [m for m in module.load_state_dict(state, strict=False).missing_keys]
    missing = [name for name in missing if name not in allowed]
    if missing:
        raise RuntimeError(f"Missing key(s) in state_dict: {', '.join(missing)}")


def _moved(value: Any, device: torch.device | str | None) -> Any:
    """A state dict with its tensors on another device."""
    if device is None:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: v if k == EXTRA else _moved(v, device) for k, v in value.items()}
    return value


def load_sharded_state_dict(
    module: nn.Module,
    module_state_dict: StateDict,
    optimizer: torch.optim.Optimizer | None = None,
    optimizer_state_dict: StateDict | None = None,
    *,
    device: torch.device | str | None = None,
) -> None:
    """Loads this rank's own ``state_dict()``s of the same plan.

    Args:
        module: as it was when saved.
        module_state_dict: this rank's.
        optimizer: its optimizer.
        optimizer_state_dict: this rank's.
        device: moves the tensors there first.
    """
    module.load_state_dict(_moved(module_state_dict, device))
    if optimizer is not None and optimizer_state_dict is not None:
        optimizer.load_state_dict(_moved(optimizer_state_dict, device))


# Without duplicates.


def _replicas(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """For each name in the state dict: the ranks that hold this rank's value; the first stores it."""
    everyone = tuple(range(world_size()))
    ranks = {}
    modules = _parallel_modules(module)
    for name in module.state_dict():
        prefix = next((p for p in modules if name.startswith(p)), None)
        if prefix is None:
            ranks[name] = everyone
        elif not name.endswith(EXTRA):
            m = modules[prefix]
            axes = m._layouts[name[len(prefix) :]].replica_axes
            ranks[name] = m.mesh.ranks(axes, units=True)
    return ranks


def deduped_state_dict(
    module: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> tuple[StateDict, StateDict | None]:
    """This rank's state dicts without the tensors that a lower rank has too; no communication.

    Args:
        module: the parallel module, or one that holds some.
        optimizer: what `build_optimizer` made.

    Returns:
        The module's and the optimizer's, or None.
    """
    replicas, rank = _replicas(module), world_rank()
    model = {
        name: value
        for name, value in module.state_dict().items()
        if name not in replicas or replicas[name][0] == rank
    }
    if optimizer is None:
        return model, None
    state = optimizer.state_dict()
    names = state[EXTRA]["param_names"]
    state["state"] = {
        place: entry for place, entry in state["state"].items() if replicas[names[place]][0] == rank
    }
    return model, state


def load_deduped_state_dict(
    module: nn.Module,
    module_state_dict: StateDict,
    optimizer: torch.optim.Optimizer | None = None,
    optimizer_state_dict: StateDict | None = None,
    *,
    device: torch.device | str | None = None,
) -> None:
    """Loads what `deduped_state_dict` returned on this rank; all ranks call this, same plan.

    Args:
        module: as it was when saved.
        module_state_dict: this rank's.
        optimizer: its optimizer.
        optimizer_state_dict: this rank's.
        device: moves the tensors there first; None leaves them to the module.
    """
    replicas, rank = _replicas(module), world_rank()
    lacking = frozenset(name for name, ranks in replicas.items() if ranks[0] != rank)
    _load_model(module, _moved(module_state_dict, device), lacking)
    sent: set[tuple[int, int]] = set()
    state = module.state_dict()
    for name, ranks in replicas.items():
        value = state[name]
        if not isinstance(value, torch.Tensor):
            continue
        memory = (value.data_ptr() or id(value), value.numel())
        if memory not in sent:  # A tie is one memory.
            sent.add(memory)
            comm.broadcast(value, ranks[0], group_of(ranks))
    for m in _parallel_modules(module).values():
        m.mark_values_set()
    broadcast_weights(module)
    if optimizer is not None and optimizer_state_dict is not None:
        complete = _spread_optimizer(optimizer, optimizer_state_dict, replicas)
        optimizer.load_state_dict(complete)


def _spread_optimizer(optimizer, shard: StateDict, replicas) -> StateDict:
    """A rank's whole optimizer state from what every rank stored of it."""
    shard = dict(shard)
    names = shard[EXTRA]["param_names"]
    state: dict[int, StateDict] = dict(shard["state"])
    places: dict[tuple[int, ...], list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(replicas[name], []).append(place)
    for ranks, mine in places.items():
        group = group_of(ranks)
        if group is None:
            continue
        described: list[Any] = [
            {
                place: {
                    key: ("tensor", tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v
                    for key, v in state[place].items()
                }
                for place in mine
                if place in state
            }
        ]
        dist.broadcast_object_list(described, ranks[0], group)
        for place, entry in described[0].items():
            own = state.get(place, {})
            state[place] = {
                key: _received(own.get(key), v, ranks, group) for key, v in entry.items()
            }
    shard["state"] = dict(sorted(state.items()))
    return shard


def _received(own, described, ranks: tuple[int, ...], group):
    """One value of the first rank of a group."""
    if not (isinstance(described, tuple) and described and described[0] == "tensor"):
        return described
    _, shape, dtype = described
    device = wire_device()
    if world_rank() == ranks[0]:
        value = own.detach().to(device).contiguous()
    else:
        value = torch.empty(shape, dtype=dtype, device=device)
    comm.broadcast(value, ranks[0], group)
    return value


@torch.no_grad()
def broadcast_weights(module: nn.Module, stride_size: int | None = None) -> None:
    """Copies weights and buffers of the first ranks to all that hold the same; all ranks call this.

    Args:
        module: the parallel module, or one that holds some.
        stride_size: ranks that have everything between them; None: a plan's ranks for a parallel
            module, and 1 outside of them.

    Raises:
        RuntimeError: a first rank has non-persistent buffers without values.
    """
    modules = _parallel_modules(module)
    inside = {id(t) for m in modules.values() for _, t in m._all_tensors()}
    everything = [*module.named_parameters(), *module.named_buffers()]
    _broadcast([t for _, t in everything if id(t) not in inside], stride_size or 1)
    for prefix, m in modules.items():
        stride = stride_size or m.module_dedup_group_size
        if world_rank() < stride and not m.non_presistent_buffers_inited:
            raise RuntimeError(
                f"broadcast_weights: Non-persistent buffers haven't been initialized in "
                f"{prefix or 'the module'} of rank {world_rank()}, from which they are copied"
            )
        _broadcast([*m.parameters(), *m.buffers()], stride)
        m.mark_non_persistent_buffers_inited()


def _broadcast(tensors: list[torch.Tensor], stride: int) -> None:
    ranks = tuple(range(world_rank() % stride, world_size(), stride))
    group = group_of(ranks)
    for tensor in tensors:
        data = tensor.data
        if data.is_contiguous():
            comm.broadcast(data, ranks[0], group)
        else:
            copy = data.contiguous()
            comm.broadcast(copy, ranks[0], group)
            data.copy_(copy)


# From one rank that has the merged state to all.


def trimmed_broadcast_merged_state_dict(
    module: nn.Module,
    module_state_dict: StateDict | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    optimizer_state_dict: StateDict | None = None,
    *,
    src_rank: int = 0,
    dst_ranks: list[int] | None = None,
    device: torch.device | str | None = None,
) -> tuple[StateDict, StateDict | None]:
    """Sends each rank its parts of a merged state that one rank has.

    Every rank of ``dst_ranks`` calls this; only ``src_rank`` gives state dicts.

    Args:
        module: the parallel module, or one that holds some.
        module_state_dict: the merged model.
        optimizer: what `build_optimizer` made, on all ranks or none.
        optimizer_state_dict: the merged optimizer state.
        src_rank: the rank that has them.
        dst_ranks: ranks that get their parts, ascending; None: all.
        device: where the result is; None: this rank's device.

    Returns:
        The sharded form of both, for `load_sharded_state_dict`.

    Raises:
        ValueError: the ranks, or who gives what, are not as said.
    """
    ranks = list(range(world_size())) if dst_ranks is None else list(dst_ranks)
    rank = world_rank()
    _check_trim(ranks, rank, src_rank, module_state_dict, optimizer, optimizer_state_dict)
    device = current_device() if device is None else torch.device(device)
    own = None
    if optimizer is not None:
        own = optimizer.state_dict()
        own["state"] = {}
    extras = _own_extras(module)
    group = group_of(tuple(ranks))
    wants: list[Any] = [(extras, own)]
    has_optimizer = [optimizer_state_dict is not None]
    if group is not None:
        dist.broadcast_object_list(has_optimizer, src_rank, group)
        wants = [None] * len(ranks) if rank == src_rank else None
        dist.gather_object((extras, own), wants, src_rank, group)
    mine = None
    if rank == src_rank:
        for other, (their_extras, their_own) in zip(ranks, wants, strict=True):
            model = _cut_model(module_state_dict, their_extras)
            state = None
            if has_optimizer[0]:
                if their_own is None:
                    raise ValueError(f"trimmed_broadcast: rank {other} gives no optimizer")
                state = _cut_optimizer(optimizer_state_dict, their_own, their_extras)
            if other == rank:
                mine = (_moved(model, device), _moved(state, device))
            else:
                _send((model, state), other, group)
    else:
        mine = _receive(src_rank, group, device)
    return mine


def _check_trim(ranks, rank, src_rank, model, optimizer, state) -> None:
    where = "trimmed_broadcast_merged_state_dict"
    if ranks != sorted(set(ranks)) or not ranks:
        raise ValueError(f"{where}: dst_ranks {ranks} must be ascending, each rank once")
    for name, value in (("this rank", rank), ("src_rank", src_rank)):
        if value not in ranks:
            raise ValueError(f"{where}: {name} {value} is not in dst_ranks {ranks}")
    if rank == src_rank and model is None:
        raise ValueError(f"{where}: rank {rank} is src_rank and gives no module state dict")
    if rank != src_rank and (model is not None or state is not None):
        raise ValueError(f"{where}: only rank {src_rank} (src_rank) may give state dicts")
    if state is not None and optimizer is None:
        raise ValueError(f"{where}: an optimizer state dict is given and no optimizer")


def _send(value: Any, to: int, group) -> None:
    """Sends a nest of dicts and tuples, its tensors one by one."""
    tensors: list[torch.Tensor] = []
    outline = _outline(value, tensors)
    dist.send_object_list([outline], to, group)
    for tensor in tensors:
        dist.send(tensor.detach().to(wire_device()).contiguous(), to, group)


def _receive(source: int, group, device: torch.device) -> Any:
    outline: list[Any] = [None]
    dist.recv_object_list(outline, source, group)
    return _filled(outline[0], source, group, device)


class _Hole:
    """Stands for a tensor that is sent on its own."""

    def __init__(self, tensor: torch.Tensor):
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Hole(value)
    if isinstance(value, dict):
        return {k: v if k == EXTRA else _outline(v, tensors) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_outline(v, tensors) for v in value)
    return value


def _filled(value: Any, source: int, group, device: torch.device) -> Any:
    if isinstance(value, _Hole):
        tensor = torch.empty(value.shape, dtype=value.dtype, device=wire_device())
        dist.recv(tensor, source, group)
        return tensor.to(device)
    if isinstance(value, dict):
        return {k: _filled(v, source, group, device) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_filled(v, source, group, device) for v in value)
    return value


def load_merged_state_dict_from_rank(
    module: nn.Module,
    module_state_dict: StateDict | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    optimizer_state_dict: StateDict | None = None,
    *,
    src_rank: int = 0,
    dst_ranks: list[int] | None = None,
    device: torch.device | str | None = None,
) -> None:
    """`trimmed_broadcast_merged_state_dict`, and loads what arrives."""
    model, state = trimmed_broadcast_merged_state_dict(
        module,
        module_state_dict,
        optimizer,
        optimizer_state_dict,
        src_rank=src_rank,
        dst_ranks=dst_ranks,
        device="cpu",
    )
    load_sharded_state_dict(module, model, optimizer, state, device=device)


__all__ = [
    "broadcast_weights",
    "deduped_state_dict",
    "load_deduped_state_dict",
    "load_merged_state_dict",
    "load_merged_state_dict_from_rank",
    "load_sharded_state_dict",
    "merge_state_dicts",
    "trimmed_broadcast_merged_state_dict",
]
