"""Runs an export: from a module and sample arguments to an archive."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from nnscaler import register
from nnscaler.errors import InputError
from nnscaler.export import extra as extras
from nnscaler.export.archive import save
from nnscaler.export.intercept import calls_to, current_tracer
from nnscaler.export.leaves import Leaves
from nnscaler.export.notes import taking_notes, write_gradients
from nnscaler.export.refusals import (
    debugging,
    forward_of,
    quietly,
    refusal,
    refuse_transforms,
)
from nnscaler.export.regions import Regions
from nnscaler.export.sample import Sample
from nnscaler.export.source import line_of_caller, type_name
from nnscaler.export.tensors import Snapshot, describe_tensors, give_devices, left_as_it_was
from nnscaler.export.training import TrainingReads, batch_norm_counters, compare
from nnscaler.export.trees import Containers, containers, describe
from nnscaler.version import __version__

FORMAT = 1


def export(
    module: nn.Module | Callable[[], tuple],
    args: tuple,
    kwargs: dict[str, Any] | None,
    path: str | Path | None,
    dynamic_shapes: Any,
    training: bool,
    meta: bool,
) -> Path:
    """See `nnscaler.export.export`."""
    module, args, kwargs = _made(module, args, kwargs, meta)
    path = Path(path if path is not None else "model.pt2")
    _refuse_hooks(module)
    with left_as_it_was(module) as before, containers() as known:
        if not training:
            module.eval()
        elif not module.training:
            module.train()
        tensors = describe_tensors(module)
        give_devices(module)
        sample = Sample(module, args, kwargs, known, dynamic_shapes)
        reads = TrainingReads(module)
        with _same_random_numbers(module):
            with reads.recording():
                traced = _trace(module, sample, known, before)
            evaluation: dict[str, Any] = {"mode": "same", "training_only": []}
            if training:
                evaluation = _evaluation(module, sample, known, traced, reads)
        write_gradients(traced.program.graph_module)
        extra = _extra(module, sample, traced) | tensors
        extra |= {"training": training, "eval": evaluation}
        save(traced.program, extra, path, forward_of(module))
    return path


@dataclass
class _Traced:
    program: ExportedProgram
    leaves: Leaves
    regions: Regions
    anchors: list[str]


def _made(module: Any, args: Any, kwargs: Any, meta: bool) -> tuple[nn.Module, Any, Any]:
    if isinstance(module, nn.Module):
        if meta:
            raise InputError(
                "export: meta is for a function that makes the model, and a module was given; build it under "
                'torch.device("meta") instead, or give the function'
            )
    elif not callable(module) or isinstance(module, type):
        raise InputError(
            f"export: expected a torch.nn.Module or a function that returns (module, args, kwargs), not a "
            f"{type_name(type(module) if not isinstance(module, type) else module)}"
        )
    else:
        with torch.device("meta") if meta else contextlib.nullcontext():
            made = module()
        if not (isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], nn.Module)):
            raise InputError(
                f"export: {getattr(module, '__qualname__', module)}() returned {_shape(made)}; return (module, args, kwargs)"
            )
        module, args, kwargs = made
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            f"export: {type(module).__name__} is a scripted module, which cannot be exported; give the module as it "
            "was before"
        )
    if hasattr(module, "_orig_mod"):
        raise InputError(
            f"export: the {type(module._orig_mod).__name__} is compiled by torch.compile; give the module as it was "
            "before"
        )
    return module, args, kwargs


def _shape(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type_name(type(v)) for v in value)})"
    return f"a {type_name(type(value))}"


def _refuse_hooks(module: nn.Module) -> None:
    """Backward hooks run outside of the graph: the exported model would train without them."""
    advice = (
        "remove it before the export; what it does to gradients can be a torch.autograd.Function"
    )
    for name, m in module.named_modules():
        if m._backward_hooks or m._backward_pre_hooks:
            raise InputError(
                f"module {name or type(module).__name__} has a backward hook, which an exported model does not call; {advice}"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"parameter {name} has a gradient hook, which an exported model does not call; {advice}"
            )


@contextlib.contextmanager
def _same_random_numbers(module: nn.Module) -> Iterator[None]:
    """Refuses forwards that draw random numbers in Python: what is drawn would be fixed for good."""
    numpy = sys.modules.get("numpy")
    before = random.getstate()
    numpy_before = numpy.random.get_state() if numpy else None
    drawn = ""
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        if random.getstate() != before:
            drawn = "random"
            random.setstate(before)
        if numpy:
            now = numpy.random.get_state()
            if now[2] != numpy_before[2] or (now[1] != numpy_before[1]).any():
                drawn = "numpy.random"
                numpy.random.set_state(numpy_before)
    if drawn:
        raise InputError(
            f"{forward_of(module)}: {type(module).__name__}.forward draws from Python's {drawn}, and the numbers drawn "
            "while exporting would be kept for good; draw with torch.rand, or switch it off"
        )


def _state_set(before: Snapshot) -> list[str]:
    """What a forward left in the user's modules, in words."""
    return [
        f"{forward_of(m)}: {type(m).__name__}.forward sets {', '.join(f'self.{name}' for name in names)}"
        for m, names in before.changed()
        if not type(m).__module__.startswith("torch.")
    ]


# --- Tracing ---


def _trace(
    module: nn.Module, sample: Sample, known: Containers, before: Snapshot | None = None
) -> _Traced:
    leaves, regions, anchors = Leaves(), Regions(), []
    state: list[str] = []

    def check_output(module: nn.Module, args: Any, output: Any) -> None:
        if before is not None:
            state.extend(_state_set(before))
        known.learn(
            output,
            f"{forward_of(module)}: {type(module).__name__}.forward's result",
            "return tensors, or tuples, lists, dicts, namedtuples or dataclasses of tensors"
            + (", or call it with use_cache=False" if _returns_cache(output) else ""),
        )

    def mark_anchor(name: str) -> None:
        tracer = current_tracer()
        if tracer is not None:
            node = next(reversed(tracer.graph.nodes), None)
            if node is not None:
                node.meta.setdefault(extras.ANCHORS, []).append(len(anchors))
            anchors.append(name)

    handle = module.register_forward_hook(check_output)
    register._anchors.append(mark_anchor)
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            leaves.recording(),
            regions.recording(),
            taking_notes(),
            calls_to(_REFUSED),
            quietly(),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", module=r"torch\.")
            warnings.filterwarnings("ignore", message="The tensor attribute")  # see _state_set
            program = torch.export.export(
                module,
                sample.args,
                sample.kwargs,
                dynamic_shapes=sample.dynamic_shapes,
                strict=False,
            )
            refuse_transforms(program.graph_module)
    except Exception as error:
        failure = _input_error_in(error) or refusal(error, module)
        if debugging():
            raise failure from (error if failure is not error else None)
        raise failure.with_traceback(None) from None
    finally:
        register._anchors.pop()
        handle.remove()
    for each in state:
        warnings.warn(
            f"{each}; an exported model computes with what it was and does not keep it from one call to the next: "
            "register a buffer if it must",
            stacklevel=4,
        )
    return _Traced(program, leaves, regions, anchors)


def _returns_cache(output: Any) -> bool:
    return hasattr(output, "past_key_values")


def _input_error_in(error: BaseException | None) -> InputError | None:
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def _refuse(what: str, advice: str) -> Callable:
    def handle(original: Callable, args: tuple, kwargs: dict) -> Any:
        if current_tracer() is None:
            return original(*args, **kwargs)
        line = line_of_caller(sys._getframe(2))
        raise InputError(f'{line}: "{line.text if line else ""}" {what}; {advice}')

    return handle


_REFUSED = {
    torch.Tensor.register_hook: _refuse(
        "hooks into the gradient, which an exported model would not do",
        "write it as a torch.autograd.Function whose backward changes the gradient",
    ),
    torch.autograd.backward: _refuse(
        "runs backward inside of forward, which an exported model would not do",
        "return the loss, and call backward on it outside",
    ),
}


def _evaluation(
    module: nn.Module, sample: Sample, known: Containers, traced: _Traced, reads: TrainingReads
) -> dict[str, Any]:
    """How the evaluation graph relates to the training graph."""
    if "unknown" not in reads.modes:
        counters = batch_norm_counters(traced.program.graph_module)
        return {"mode": "flags" if "flags" in reads.modes else "same", "training_only": counters}
    module.eval()
    try:
        other = _trace(module, sample, known).program
    except InputError as error:
        return {"mode": "differs", "reason": f"in evaluation mode, {error}", "training_only": []}
    mode, training_only, node = compare(traced.program, other)
    result: dict[str, Any] = {"mode": mode, "training_only": training_only}
    if mode == "differs":
        result["reason"] = _why_differs(reads, node)
    return result


def _why_differs(reads: TrainingReads, node: torch.fx.Node | None) -> str:
    line = next(iter(reads.unknown))
    operator_name = getattr(node.target, "_opname", None) if node is not None else None
    what = f" from {operator_name} on" if operator_name else ""
    return f'{line}: "{line.text}" makes other operators in training than in evaluation{what}'


# --- extra/nnscaler.json ---


def _extra(module: nn.Module, sample: Sample, traced: _Traced) -> dict[str, Any]:
    program = traced.program
    return {
        "format": FORMAT,
        "nnscaler": __version__,
        "torch": torch.__version__,
        "module_class": type_name(type(module)),
        "recompute": extras.describe_regions(program, traced.regions.regions),
        "leaves": extras.describe_leaves(program, traced.leaves.calls),
        "anchors": extras.describe_anchors(program, traced.anchors),
        "forward": {"parameters": sample.parameters(), "output": _output(program)},
        "symbols": extras.describe_symbols(program),
    }


def _output(program: ExportedProgram) -> dict[str, Any]:
    (node,) = (n for n in program.graph.nodes if n.op == "output")
    values = [v.meta["val"] if isinstance(v, torch.fx.Node) else v for v in node.args[0]]
    return describe(program.call_spec.out_spec, iter(enumerate(values)))
