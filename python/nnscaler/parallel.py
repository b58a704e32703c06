"""`parallelize`: from a module and a sample batch to the module that runs on this rank."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnscaler import policies
from nnscaler.config import BroadcastGenFilesStrategy, ComputeConfig, ReuseType
from nnscaler.errors import InputError, UnsupportedError
from nnscaler.runtime.agreement import on_rank0, verify_agreement
from nnscaler.runtime.mesh import world_rank, world_size
from nnscaler.runtime.module import ParallelModule
from nnscaler.version import __version__

_logger = logging.getLogger(__name__)

ARCHIVE = "model.pt2"
PLAN = "plan.json"
RECORD = "nnscaler.json"
WEIGHTS = "fullmodel.pt.0"
BUFFERS = "npbuffer.pt"
CONFIG = "compute_config.pt"
METADATA = "origin_module_metadata.pt"

# Keys of pas_config: those that this version obeys, and those of nnScaler's that it need not or cannot.
_OBEYED = {
    "update_freq", "mem_constraint", "partition_constraints_path", "recompute_modules", "load_plan_path",
    "save_plan_path", "mesh", "cluster", "optimizer", "seed", "enable_random_replicated", "verbose", "task_name",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "use_fp16", "use_bf16", "use_memory_efficient_fp16", "use_memory_efficient_bf16", "use_apex_fused_adam_v2",
    "profile_dir", "re_profile", "parallel_profile", "transient_mem_coef", "disable_shared_param_constraint", "solver",
    "profile", "max_partition_degree", "max_pipeline_bubble_ratio", "max_pipeline_unbalance_ratio", "recompute_ratio",
}  # fmt: skip
_PIPELINE = {
    "pipeline_pivots": "", "pipeline_nstages": "auto", "pipeline_scheduler": "1f1b", "pipeline_size": 1,
    "pipeline_nmicros": None, "pp_size": 1, "pipeline_multiref_replicated_params": True, "recomputes": "",
}  # fmt: skip


def parallelize(
    module_or_module_class: nn.Module | type[nn.Module],
    dummy_forward_args: dict[str, Any],
    pas_policy: str | Callable,
    compute_config: ComputeConfig,
    *,
    gen_savedir: str | Path = "./.nnscaler",
    reuse: ReuseType | str = ReuseType.MATCH,
    instance_name: str | None = None,
    load_module: bool = True,
    module_dtype: torch.dtype | None = None,
    module_fn: Callable[[], nn.Module] | None = None,
    init_module_params: bool = True,
    build_module_buckets: bool = True,
    broadcast_strategy: BroadcastGenFilesStrategy | str = BroadcastGenFilesStrategy.NONE,
    autoset_requires_grad: bool = True,
) -> nn.Module | type[nn.Module] | None:
    """Plans a module, writes its rank programs and returns the one for this rank.

    Rank 0 exports, plans and writes; the others wait for it, and hear of its failure in full. All ranks then check
    that they run the same code.

    Args:
        module_or_module_class: a module (a `ParallelModule` comes back) or a class (a subclass of `ParallelModule`
            comes back, whose constructor takes `init_params` and `build_buckets`).
        dummy_forward_args: sample value of each argument of forward, by name.
        pas_policy: `'autodist'`, `'tp'`, `'data'`, `'dp'`, or a function `policy(graph, cfg)` that yields `OpPlan`s.
        compute_config: numbers of devices and options.
        gen_savedir: root of the generated files.
        reuse: what to do with files that are there already, see `ReuseType`.
        instance_name: an extra level of the path, so that several configurations of one class live side by side.
        load_module: False only writes the files and returns None; needs no process group.
        module_dtype: dtype that the module is converted to first.
        module_fn: makes the module; for a class only. Without it the class must need no arguments.
        init_module_params: load the module's weights; False leaves parameters empty.
        build_module_buckets: make the gradient buckets now.
        broadcast_strategy: which files rank 0 sends to other nodes.
        autoset_requires_grad: floating-point samples require a gradient unless `use_end2end`.

    Returns:
        The parallel module, its class, or None.

    Raises:
        InputError: an argument, the model, a constraint or the policy is wrong.
        InfeasibleError: no plan fits the devices' memory.
        UnsupportedError: asks for what this version does not run.
    """
    is_class = isinstance(module_or_module_class, type)
    kind = module_or_module_class if is_class else type(module_or_module_class)
    if issubclass(kind, ParallelModule):
        return module_or_module_class if load_module else None
    if not issubclass(kind, nn.Module):
        raise InputError(f"parallelize: {kind.__name__} is no torch.nn.Module")
    if not isinstance(dummy_forward_args, dict):
        raise InputError(
            "parallelize: dummy_forward_args is a dict, forward's argument name -> sample value"
        )
    if not is_class and module_fn is not None:
        raise InputError("parallelize: module_fn goes with a class, not with a module")
    reuse = ReuseType(reuse)
    broadcast_strategy = BroadcastGenFilesStrategy(broadcast_strategy)
    policy = _policy(pas_policy)
    _check_pas_config(compute_config.pas_config)
    if load_module and world_size() != compute_config.runtime_ngpus:
        raise InputError(
            f"parallelize: compute_config has runtime_ngpus={compute_config.runtime_ngpus} and the job has "
            f"{world_size()} ranks; start it with torchrun --nproc_per_node={compute_config.runtime_ngpus} or change "
            "runtime_ngpus"
        )
    out = output_directory(kind, gen_savedir, instance_name)
    if not load_module and world_rank() != 0:
        return None

    def generate() -> str:
        module = module_or_module_class
        if is_class:
            module = _make(kind, module_fn)
        if any(isinstance(m, ParallelModule) for m in module.modules()):
            raise InputError(
                "parallelize: the module holds a parallel module already; they cannot be nested"
            )
        if module_dtype is not None:
            module = module.to(module_dtype)
        return _generate(
            module, dummy_forward_args, policy, compute_config, out, reuse, autoset_requires_grad
        )

    if load_module:
        digest = on_rank0(generate, f"parallelize {kind.__qualname__}")
    else:
        generate()
        return None
    _broadcast_files(out, broadcast_strategy)
    verify_agreement(
        _code_digest(out), f"generated code of {kind.__qualname__} in {out}", expected=digest
    )
    generated = load_generated(out, kind, compute_config)
    if is_class:
        return generated
    parallel = generated(init_params=init_module_params, build_buckets=build_module_buckets)
    parallel.train(module_or_module_class.training)
    return parallel


def output_directory(kind: type, gen_savedir: str | Path, instance_name: str | None) -> Path:
    """Where the files of a class go: `{gen_savedir}/_parallel_modules/{module}/{qualname}/{instance or _}`."""
    parts = [
        *kind.__module__.split("."),
        *kind.__qualname__.replace("<locals>", "_locals_").split("."),
    ]
    return Path(gen_savedir).resolve().joinpath("_parallel_modules", *parts, instance_name or "_")


def _policy(pas_policy: str | Callable) -> Callable | None:
    """The policy's function; None for the search."""
    if callable(pas_policy):
        return pas_policy
    if pas_policy == "autodist":
        return None
    if pas_policy not in policies.BUILT_IN:
        names = ", ".join(["autodist", *policies.BUILT_IN])
        raise InputError(f"Invalid pas_policy: {pas_policy!r}; it is one of {names}, or a function")
    return policies.BUILT_IN[pas_policy]


def _check_pas_config(config: dict[str, Any]) -> None:
    import difflib

    known = _OBEYED | _WITHOUT_EFFECT | set(_PIPELINE)
    for key, value in config.items():
        if key.startswith("_"):
            continue
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), 1)
            hint = f"; did you mean {near[0]}?" if near else "; keys of your own start with _"
            raise InputError(f"pas_config: unknown key {key!r}{hint}")
        if key in _WITHOUT_EFFECT:
            _logger.warning("pas_config: %s has no effect in this version", key)
        if key in _PIPELINE and value not in (_PIPELINE[key], None, "", 1, "auto"):
            raise UnsupportedError(
                f"pas_config: {key}={value!r} needs a pipeline, which this version does not run"
            )
    if config.get("load_plan_path") and config.get("save_plan_path"):
        raise InputError(
            "pas_config: load_plan_path and save_plan_path are both given; give one of them"
        )


def _make(kind: type[nn.Module], module_fn: Callable[[], nn.Module] | None) -> nn.Module:
    try:
        module = module_fn() if module_fn else kind()
    except TypeError as error:
        raise InputError(
            f"parallelize: {kind.__name__}() cannot be made: {error}; give module_fn"
        ) from error
    if type(module) is not kind:
        raise InputError(
            f"parallelize: module_fn made a {type(module).__name__}, not a {kind.__name__}"
        )
    return module


def _generate(
    module: nn.Module,
    samples: dict[str, Any],
    policy: Callable | None,
    config: ComputeConfig,
    out: Path,
    reuse: ReuseType,
    autoset_requires_grad: bool,
) -> str:
    """Exports, plans and writes into `out`, unless what is there fits; returns the code's digest."""
    from nnscaler import _core
    from nnscaler.export import export

    if autoset_requires_grad:
        samples = _set_requires_grad(samples, not config.use_end2end and not config.inference_only)
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        archive = scratch / ARCHIVE
        export(module, (), samples, archive, training=not config.inference_only)
        facts = json.loads(_core.operators(str(archive), ""))
        if config.use_end2end:
            _check_end2end(facts["outputs"])
        record = _record(facts["digest"], policy, config)
        present = _read_record(out)
        if present is not None and _complete(out, config) and present == record and reuse in (
            ReuseType.MATCH, ReuseType.MOO,
        ):  # fmt: skip
            save_weights(module, scratch, config, archive_constants(archive))
            for name in (WEIGHTS, BUFFERS, CONFIG, METADATA):
                os.replace(scratch / name, out / name)
            return _code_digest(out)
        if present is not None and present != record and reuse == ReuseType.MATCH:
            raise InputError(
                f"{out}: holds code made from something else ({', '.join(_differences(present, record))} differ); give "
                "reuse='override' (or 'moo') to make it anew, another gen_savedir, or another instance_name"
            )
        _plan_and_write(module, archive, policy, config, scratch, out)
        save_weights(module, scratch, config, archive_constants(archive))
        (scratch / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        out.mkdir(parents=True, exist_ok=True)
        keep = {f.name for f in scratch.iterdir()}
        for stale in out.glob("gencode*.py"):  # of a run with more ranks
            if stale.name not in keep:
                stale.unlink()
        for file in sorted(scratch.iterdir(), key=lambda f: f.name == RECORD):  # the record last
            os.replace(file, out / file.name)
        return _code_digest(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _plan_and_write(
    module, archive: Path, policy, config: ComputeConfig, scratch: Path, out: Path
) -> None:
    from nnscaler import _core

    pas = config.pas_config
    options: dict[str, Any] = {
        "mesh": _mesh(policy, config),
        "cluster": str(pas.get("cluster") or default_cluster()),
        "recompute_modules": pas.get("recompute_modules") or "",
        "units": config.runtime_ngpus // config.plan_ngpus,
        "microbatches": _update_freq(pas.get("update_freq", 1)),
        "inference": config.inference_only,
        "optimizer": pas.get("optimizer", "adamw"),
        "memory_bytes": _memory_bytes(pas.get("mem_constraint", -1)),
    }
    if pas.get("load_plan_path"):
        text = Path(pas["load_plan_path"]).read_text()
        name = str(pas["load_plan_path"])
    else:
        if policy is None:
            options["constraints"] = str(pas.get("partition_constraints_path") or "")
        else:
            graph = policies.Graph(_core.operators(str(archive), options["recompute_modules"]))
            options["partitions"] = policies.partitions_of(policy, graph, config)
            options["others_replicate"] = True
            options["memory_bytes"] = 1 << 59  # the user's own choice is not refused
        text = _core.plan(str(archive), **options)
        name = PLAN
    for warning in json.loads(text)["warnings"]:
        _logger.warning(warning)
    for file, source in _core.emit(str(archive), text, name).items():
        (scratch / file).write_text(source)
    text = text.replace(json.dumps(str(archive)), json.dumps(str(out / ARCHIVE)), 1)
    (scratch / PLAN).write_text(text)
    if pas.get("save_plan_path"):
        target = Path(pas["save_plan_path"])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def _mesh(policy: Callable | None, config: ComputeConfig) -> str:
    given = config.pas_config.get("mesh")
    if not given:
        return f"{'dp' if policy is policies.pas_data else 'tp'}={config.plan_ngpus}"
    sizes = [part.partition("=")[2].strip() for part in str(given).split(",")]
    devices = 1
    for size in sizes:
        devices *= int(size) if size.isdigit() else 0
    if devices != config.plan_ngpus:
        raise InputError(
            f"pas_config: mesh {given!r} has {devices} devices and plan_ngpus is {config.plan_ngpus}; they must agree"
        )
    if policy is not None and len(sizes) > 1:
        raise UnsupportedError("pas_config: a policy knows one mesh axis; several are for autodist")
    return str(given)


def default_cluster() -> str:
    """The built-in device that this machine has: `cpu`, or the GPU by its name."""
    if not torch.cuda.is_available():
        return "cpu"
    name = torch.cuda.get_device_name().lower()
    memory = torch.cuda.get_device_properties(0).total_memory
    for part, device in (
        ("b200", "b200"), ("h200", "h200"), ("h100", "h100-80gb"), ("mi300x", "mi300x"),
        ("a100", "a100-40gb" if memory < 60e9 else "a100-80gb"),
    ):  # fmt: skip
        if part in name:
            return device
    raise InputError(
        f"no built-in description of {name!r}; give pas_config['cluster'], a file that describes it or the name of a "
        "similar device"
    )


def _update_freq(value: Any) -> int:
    if isinstance(value, dict):
        value = value[min(value)]
    elif isinstance(value, (list, tuple)):
        value = value[0]
    if not isinstance(value, int) or value < 1:
        raise InputError(
            f"pas_config: update_freq is {value!r}; it must be a whole number of at least 1"
        )
    return value


def _memory_bytes(gib: float) -> int:
    if gib == -1:
        if torch.cuda.is_available():
            return 0
        # The host's memory is shared by its ranks.
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
        return int(0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / local)
    if not isinstance(gib, (int, float)) or gib <= 0:
        raise InputError(
            f"pas_config: mem_constraint is {gib!r}; it must be a positive number of GiB"
        )
    return int(gib * (1 << 30))


def _set_requires_grad(samples: Any, wanted: bool) -> Any:
    """Copies of the samples in which floating-point tensors require a gradient or not."""
    from torch.utils import _pytree

    def copy(x):
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().requires_grad_(wanted and (x.is_floating_point() or x.is_complex()))

    return _pytree.tree_map(copy, samples)


def _check_end2end(outputs: list[dict | None]) -> None:
    first = outputs[0] if outputs else None
    if first is None or first.get("shape") != [] or not first.get("requires_grad", False):
        got = "nothing" if first is None else f"{first['name']} of shape {first.get('shape')}"
        raise InputError(
            "use_end2end: the first value that forward returns must be the loss, a scalar tensor with a gradient, and "
            f"it is {got}; return `loss, ...`"
        )


def archive_constants(archive: Path | str) -> dict[str, torch.Tensor]:
    """Tensor literals that export lifted out of forward, by the names that generated code gives them."""
    from nnscaler import _core

    return {
        name: torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)
        if data
        else torch.empty(shape, dtype=getattr(torch, dtype))
        for name, dtype, shape, data in _core.constants(str(archive))
    }


def save_weights(
    module: nn.Module, directory: Path, config: ComputeConfig, constants: dict[str, torch.Tensor]
) -> None:
    """What `ParallelModule` reads: the model's tensors, whole, and what they are called."""
    state = dict(constants)
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        if tensor.is_meta:
            continue
        state[name] = tensor.detach().cpu()
    persistent = list(module.state_dict(keep_vars=True))
    torch.save({k: v for k, v in state.items() if k in set(persistent)}, directory / WEIGHTS)
    torch.save({k: v for k, v in state.items() if k not in set(persistent)}, directory / BUFFERS)
    ComputeConfig.safe_dump_to_file(config, directory / CONFIG)
    shared: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    metadata = {
        "origin_state_dict_names": persistent,
        "origin_param_names": [name for name, _ in module.named_parameters()],
        "origin_shared_param_names": [names for names in shared.values() if len(names) > 1],
    }
    torch.save(metadata, directory / METADATA)


def _record(model: str, policy: Callable | None, config: ComputeConfig) -> dict[str, str]:
    """What the generated code depends on, each part with its digest; `model` is the archive's."""
    pas = config.pas_config

    def file_digest(path: Any) -> str:
        return (
            _digest(Path(path).read_bytes()) if path and Path(path).is_file() else str(path or "")
        )

    source = ""
    if policy is not None:
        try:
            source = inspect.getsource(policy)
        except (OSError, TypeError):
            source = repr(policy)
    facts = config.plain()
    return {
        "model": model,
        "compute config": _digest(json.dumps(facts, sort_keys=True, default=repr).encode()),
        "constraints": file_digest(pas.get("partition_constraints_path")),
        "cluster": file_digest(pas.get("cluster")),
        "plan": file_digest(pas.get("load_plan_path")),
        "policy": _digest(source.encode()),
        "nnscaler": __version__,
        "torch": torch.__version__,
    }


def _read_record(out: Path) -> dict[str, str] | None:
    try:
        record = json.loads((out / RECORD).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _differences(present: dict, record: dict) -> list[str]:
    return [key for key in record if present.get(key) != record[key]]


def _complete(out: Path, config: ComputeConfig) -> bool:
    names = {f"gencode{rank}.py" for rank in range(config.runtime_ngpus)}
    return names == {f.name for f in out.glob("gencode*.py")}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _code_digest(out: Path) -> str:
    try:
        return _digest((out / "gencode0.py").read_bytes())
    except OSError as error:
        return f"unreadable: {error}"


def _broadcast_files(out: Path, strategy: BroadcastGenFilesStrategy) -> None:
    """Sends rank 0's files to the first rank of every other node."""
    nodes = world_size() // int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
    if strategy == BroadcastGenFilesStrategy.NONE or nodes == 1:
        return
    import torch.distributed as dist

    def wanted(name: str) -> bool:
        if strategy == BroadcastGenFilesStrategy.CODE:
            return name.endswith((".py", ".json"))
        return strategy == BroadcastGenFilesStrategy.ALL or name not in (WEIGHTS, BUFFERS)

    names: list[Any] = [
        sorted(f.name for f in out.iterdir() if wanted(f.name)) if world_rank() == 0 else None
    ]
    dist.broadcast_object_list(names, src=0)
    for name in names[0]:
        data: list[Any] = [(out / name).read_bytes() if world_rank() == 0 else None]
        dist.broadcast_object_list(data, src=0)
        if world_rank() != 0 and int(os.environ.get("LOCAL_RANK", 0)) == 0:
            out.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data[0])
    dist.barrier()


def load_generated(out: Path, kind: type | None, config: ComputeConfig) -> type[ParallelModule]:
    """Imports this rank's program; a package of its own for each directory."""
    package = f"_parallel_modules_{_digest(str(out).encode())}"
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(out)]
    sys.modules[package] = importlib.util.module_from_spec(spec)
    generated = importlib.import_module(f"{package}.gencode{world_rank()}").GenModel
    if kind is not None:
        generated.__name__ = kind.__name__
        generated.__qualname__ = kind.__qualname__
        generated.__orig_module_class__ = kind
    generated.compute_config = config
    generated.module_dir = out
    generated.runtime_version = __version__
    return generated
