"""`verify`: a plan beside the single-device model, number by number."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from nnscaler.config import ComputeConfig
from nnscaler.errors import InputError

_LEARNING_RATE, _MOMENTUM = 0.05, 0.9


class Float64(TorchFunctionMode):
    """Turns explicit casts to float32 into casts to float64: many models compute their loss in float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wide(x):
            return torch.float64 if x is torch.float32 else x

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(wide(x) for x in args)
        return func(*args, **{k: wide(v) for k, v in (kwargs or {}).items()})


@dataclass
class Difference:
    """How far one tensor is from the single-device model's.

    Attributes:
        kind: `loss`, `output`, `gradient`, `buffer` or `parameter` (after the optimizer steps).
        name: which one.
        relative: max|a - b| / max(max|b|, floor); the floor of a gradient is 1e-6 of the model's largest gradient,
            since some true gradients are zero and re-ordered sums make them noise.
    """

    kind: str
    name: str
    relative: float


@dataclass
class Report:
    """What `verify` found.

    Attributes:
        differences: one for each tensor compared, the largest first within a kind.
        tolerance: what is allowed.
        first_operator: the first operator whose result differs by more, where there is one.
    """

    differences: list[Difference] = field(default_factory=list)
    tolerance: float = 0.0
    first_operator: str | None = None

    @property
    def equal(self) -> bool:
        return all(d.relative <= self.tolerance for d in self.differences)

    def largest(self, kind: str) -> Difference | None:
        return max(
            (d for d in self.differences if d.kind == kind),
            key=lambda d: d.relative if d.relative == d.relative else float("inf"),
            default=None,
        )

    def text(self) -> str:
        """The report as a person reads it, a line a kind of tensor."""
        lines = []
        for kind in ("loss", "output", "gradient", "buffer", "parameter"):
            worst = self.largest(kind)
            if worst is not None:
                count = sum(d.kind == kind for d in self.differences)
                lines.append(
                    f"{kind:<10} {count:>5} compared, largest relative difference {worst.relative:.2e} ({worst.name})"
                )
        if self.equal:
            lines.append(f"equal      within {self.tolerance:.1e}")
        else:
            wrong = [d for d in self.differences if not d.relative <= self.tolerance]
            lines.append(f"DIFFERENT  {len(wrong)} beyond {self.tolerance:.1e}")
            if self.first_operator:
                lines.append(f"first operator that differs: {self.first_operator}")
        return "\n".join(lines)


def run_ranks(count: int, job: Callable, *arguments: Any) -> None:
    """Runs `job(*arguments)` on `count` processes of this machine that form one gloo job.

    Raises:
        InputError: a rank failed; the message names it.
    """
    with tempfile.TemporaryDirectory() as directory:
        context = torch.multiprocessing.start_processes(
            _rank_main,
            args=(count, directory, job, arguments),
            nprocs=count,
            join=False,
            start_method="spawn",
        )
        try:
            while not context.join():
                pass
        except torch.multiprocessing.ProcessRaisedException as error:
            last = str(error).strip().splitlines()[-1]
            raise InputError(f"verify: rank {error.error_index} failed: {last}") from error
        except torch.multiprocessing.ProcessExitedException as error:
            raise InputError(
                f"verify: rank {error.error_index} ended with status {error.exit_code}"
            ) from error


def _rank_main(rank: int, count: int, directory: str, job: Callable, arguments: tuple) -> None:
    import torch.distributed as dist

    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count)
    )
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=count
    )
    try:
        job(*arguments)
    finally:
        dist.destroy_process_group()


def rank_job(directory: str, config: ComputeConfig, steps: int) -> None:
    """One rank's part: runs the generated program in `directory` and leaves its numbers in `rank{r}.pt`."""
    from nnscaler.optimizer import build_optimizer
    from nnscaler.parallel import load_generated
    from nnscaler.runtime.mesh import world_rank

    path = Path(directory)
    given = torch.load(path / "inputs.pt", weights_only=False)
    generated = load_generated(path, None, config)
    with given["mode"]():
        module = generated()
    module.train(given["training"])
    optimizer = build_optimizer(module, torch.optim.SGD, lr=_LEARNING_RATE, momentum=_MOMENTUM)
    found = _run(
        module, optimizer, given, steps, lambda name, value: (module.fullmap[name].slicers, value)
    )
    torch.save(found, path / f"rank{world_rank()}.pt")


def exposed_job(directory: str, config: ComputeConfig) -> None:
    """One rank's run of a program that returns every operator's result; leaves them in `rank{r}.pt`."""
    from nnscaler.parallel import load_generated
    from nnscaler.runtime.mesh import world_rank

    path = Path(directory)
    given = torch.load(path / "inputs.pt", weights_only=False)
    generated = load_generated(path, None, config)
    with given["mode"]():
        module = generated()
    module.train(given["training"])
    with given["mode"]():
        results = module(*copy.deepcopy(given["args"]), **copy.deepcopy(given["kwargs"]))
    torch.save([x.detach() for x in results], path / f"rank{world_rank()}.pt")


def _run(module: nn.Module, optimizer, given: dict, steps: int, tag: Callable) -> dict[str, Any]:
    """Loss, outputs, gradients and buffers of one step, and parameters after `steps`."""
    found: dict[str, Any] = {}
    for step in range(max(1, steps)):
        args, kwargs = copy.deepcopy(given["args"]), copy.deepcopy(given["kwargs"])
        optimizer.zero_grad()
        with given["mode"]():
            outputs = module(*args, **kwargs)
        loss = _loss(outputs)
        if loss is not None:
            loss.backward()
            if hasattr(optimizer, "sync_shard_grad"):
                optimizer.sync_shard_grad()
        if step == 0:
            found["outputs"] = [
                x.detach() for x in _pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor)
            ]
            found["loss"] = None if loss is None else loss.detach()
            found["gradients"] = {
                name: tag(name, None if p.grad is None else p.grad.detach().clone())
                for name, p in module.named_parameters()
                if p.requires_grad
            }
            found["inputs"] = {
                str(i): x.grad.detach()
                for i, x in enumerate(_pytree.tree_leaves((args, kwargs)))
                if isinstance(x, torch.Tensor) and x.grad is not None
            }
            found["buffers"] = {
                name: tag(name, b.detach().clone()) for name, b in module.named_buffers()
            }
        if steps and loss is not None:
            optimizer.step()
    found["parameters"] = {
        name: tag(name, p.detach().clone()) for name, p in module.named_parameters()
    }
    return found


def _loss(outputs: Any) -> torch.Tensor | None:
    """The scalar that is differentiated: the first scalar output with a gradient, else a weighted sum of all."""
    leaves = [
        x for x in _pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    for x in leaves:
        if x.ndim == 0:
            return x
    if not leaves:
        return None
    generator = torch.Generator().manual_seed(1)
    terms = []
    for x in leaves:
        weights = torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x)
        terms.append((x * weights).sum())
    return sum(terms)


def verify(
    module: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    plan: str,
    *,
    archive: str | Path | None = None,
    dtype: str = "float64",
    steps: int = 3,
    tolerance: float | None = None,
    launch: Callable[..., None] | None = None,
    edit: Callable[[str], str] | None = None,
) -> Report:
    """Runs a plan on this machine's ranks and the module on one device, and compares all numbers.

    Args:
        module: the single-device model; it is copied, not changed.
        args: sample arguments of forward.
        kwargs: sample keyword arguments.
        plan: text of plan.json.
        archive: archive that the plan was made for; the path that the plan records when left out.
        dtype: `'float64'` computes both sides in double precision, explicit casts to float32 included; `'asis'` leaves
            the model's own.
        steps: optimizer steps (SGD with momentum) after which parameters are compared; 0 for none.
        tolerance: largest relative difference allowed; 1e-9 in float64, else 16 epsilons of the lowest dtype.
        launch: runs `(count, job, *arguments)` on ranks; by default processes of this machine.
        edit: changes the generated code first; for tests of `verify` itself.

    Returns:
        The report.

    Raises:
        InputError: the plan does not fit, or a rank failed.
    """
    from nnscaler import _core
    from nnscaler.parallel import archive_constants, save_weights

    try:
        facts = json.loads(plan)
        archive = str(archive or facts["archive"]["path"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("verify: this is no plan; make one with nnscaler plan") from error
    files = _core.emit(archive, plan)
    own = dict(module.named_parameters(remove_duplicate=False))
    foreign = [row["fqn"] for row in facts["values"] if "bytes" in row and row["fqn"] not in own]
    if foreign:
        raise InputError(
            f"verify: the plan is of {facts['model']}, whose {foreign[0]} this model has not; give the model that was "
            "planned"
        )
    module, args, kwargs = copy.deepcopy(module), *copy.deepcopy((args, kwargs))
    constants = archive_constants(archive)
    mode = _Nothing
    if dtype == "float64":
        mode = Float64
        module = module.double()
        constants = {name: _double(value) for name, value in constants.items()}
        args, kwargs = _pytree.tree_map(_double, (args, kwargs))
    elif dtype != "asis":
        raise InputError(f"verify: dtype is {dtype!r}; it is 'float64' or 'asis'")
    given = {"args": args, "kwargs": kwargs, "training": module.training, "mode": mode}

    def run(files: dict[str, str], plan_facts: dict, job: Callable, *arguments: Any) -> list[Any]:
        """Runs generated files on ranks; returns what each left."""
        units = plan_facts["options"]["units"]
        devices = 1
        for axis in plan_facts["mesh"].split(","):
            devices *= int(axis.partition("=")[2])
        config = ComputeConfig(devices, devices * units)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory)
            for name, text in files.items():
                if dtype == "float64":
                    text = text.replace("torch.float32", "torch.float64")
                if edit is not None:
                    text = edit(text)
                (path / name).write_text(text)
            save_weights(module, path, config, constants)
            torch.save(given, path / "inputs.pt")
            (launch or run_ranks)(config.runtime_ngpus, job, directory, config, *arguments)
            return [
                torch.load(path / f"rank{r}.pt", weights_only=False)
                for r in range(config.runtime_ngpus)
            ]

    ranks = run(files, facts, rank_job, steps)
    if tolerance is None:
        tolerance = 1e-9 if dtype == "float64" else 16 * _epsilon(module, args, kwargs)
    units = facts["options"]["units"]
    reference = copy.deepcopy(module)
    optimizer = torch.optim.SGD(reference.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)
    single = _run(
        reference,
        _Scaled(optimizer, reference, units),
        given,
        steps,
        lambda name, value: (None, value),
    )
    report = _compare(single, ranks, units, tolerance)
    if not report.equal:
        files, operators = _core.emit_exposed(archive, plan)
        results = run(files, facts, exposed_job)
        whole = _core.plan(
            archive,
            mesh="tp=1",
            cluster="cpu",
            memory_bytes=1 << 59,
            inference=facts["options"]["inference"],
        )
        files, operators = _core.emit_exposed(archive, whole)
        edit = None
        expected = run(files, json.loads(whole), exposed_job)[0]
        for i, operator in enumerate(operators):
            if any(_relative(rank[i], expected[i]) > tolerance for rank in results):
                report.first_operator = operator
                break
    return report


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class _Scaled:
    """The single device's optimizer; gradients are those of the sum over all copies of the plan."""

    def __init__(self, optimizer, module: nn.Module, units: int):
        self.optimizer, self.module, self.units = optimizer, module, units
        self.zero_grad, self.step = optimizer.zero_grad, optimizer.step

    def sync_shard_grad(self) -> None:
        for p in self.module.parameters():
            if p.grad is not None and self.units > 1:
                p.grad.mul_(self.units)


def _double(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    wide = x.detach().clone()
    if wide.dtype == torch.float32:
        wide = wide.double()
    return wide.requires_grad_(x.requires_grad)


def _epsilon(module: nn.Module, args: tuple, kwargs: dict) -> float:
    tensors = [*module.parameters(), *_pytree.tree_leaves((args, kwargs))]
    types = {t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()}
    return max((torch.finfo(t).eps for t in types), default=torch.finfo(torch.float32).eps)


def _whole(name: str, parts: list[tuple], like: torch.Tensor | None) -> torch.Tensor | None:
    """A tensor from the ranks' parts; replicas must agree to the bit of what they are compared with."""
    if all(value is None for _, value in parts):
        return None
    if like is None or any(value is None for _, value in parts):
        raise InputError(
            f"verify: {name} has a gradient on some ranks only, or where the model has none"
        )
    whole = (
        torch.full_like(like, float("nan")) if like.is_floating_point() else torch.zeros_like(like)
    )
    for slices, value in parts:
        whole[slices] = value
    return whole


def _relative(a: torch.Tensor | None, b: torch.Tensor | None, floor: float = 0.0) -> float:
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    if not (b.is_floating_point() or b.is_complex()):
        return 0.0 if torch.equal(a, b) else float("inf")
    a, b = a.to(torch.complex128 if b.is_complex() else torch.float64), b
    same_nan = torch.equal(a.isnan(), b.isnan())
    if not same_nan:
        return float("inf")
    scale = max(float(b.abs().nan_to_num().max()), floor, 1e-300)
    return float((a - b).abs().nan_to_num().max()) / scale


def _compare(single: dict, ranks: list[dict], units: int, tolerance: float) -> Report:
    report = Report(tolerance=tolerance)

    def add(kind: str, name: str, value: float) -> None:
        report.differences.append(Difference(kind, name, value))

    for r, rank in enumerate(ranks):
        if single["loss"] is not None:
            add("loss", f"rank {r}", _relative(rank["loss"], single["loss"]))
        if len(rank["outputs"]) != len(single["outputs"]):
            add("output", f"rank {r}: number of outputs", float("inf"))
        for i, (a, b) in enumerate(zip(rank["outputs"], single["outputs"], strict=False)):
            add("output", f"output {i} on rank {r}", _relative(a, b))
    largest = max(
        (
            float(g.abs().max())
            for _, g in single["gradients"].values()
            if g is not None and g.numel()
        ),
        default=0.0,
    )
    for kind, key, floor in (
        ("gradient", "gradients", 1e-6 * largest),
        ("buffer", "buffers", 0.0),
        ("parameter", "parameters", 1e-6),
    ):
        for name, (_, b) in single[key].items():
            for unit in range(units):
                size = len(ranks) // units
                parts = [r[key].get(name) for r in ranks[unit * size : (unit + 1) * size]]
                if any(part is None for part in parts):
                    continue  # another name of a tied parameter
                a = _whole(name, parts, b)
                # Every replica, not only the last one written.
                worst = _relative(a, b, floor)
                for slices, value in parts:
                    if value is not None and b is not None:
                        worst = max(worst, _worst_of(value, b[slices], b, floor))
                add(kind, name, worst)
    for name, b in single["inputs"].items():
        for r, rank in enumerate(ranks):
            add(
                "gradient",
                f"input {name} on rank {r}",
                _relative(rank["inputs"].get(name), b, 1e-6 * largest),
            )
    return report


def _worst_of(value: torch.Tensor, part: torch.Tensor, whole: torch.Tensor, floor: float) -> float:
    top = float(whole.abs().max()) if whole.is_floating_point() and whole.numel() else 0.0
    return _relative(value, part, max(floor, top))
