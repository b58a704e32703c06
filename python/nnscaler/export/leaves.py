"""Functions that stay whole: autograd Functions and what the user registered.

A call of one becomes a single node of the graph, an operator of the namespace `nnscaler_leaf` that is
defined on the fly. The function itself runs on the tracer's tensors without values, unseen by the
tracer, and its results become those of the node.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from nnscaler.errors import InputError
from nnscaler.export.intercept import calls_to, calls_to_autograd_functions, current_tracer
from nnscaler.export.source import NotALiteral, line_of_caller, literal, type_name
from nnscaler.register import (
    RegisteredOp,
    autograd_parameters,
    check_importable,
    count,
    operands,
    registered,
)

NAMESPACE = "nnscaler_leaf"
#: In the metadata of a node: the number of the call that it stands for.
CALL = "nnscaler_leaf_call"

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_operators: dict[tuple[str, int | str], torch._ops.OpOverload] = {}
_names: dict[str, str] = {}  # operator name -> signature
_results: list[Any] = []  # of the call being recorded


@dataclass
class Leaf:
    """A function kept whole."""

    module: str
    qualname: str
    autograd_function: bool
    parameters: inspect.Signature | None
    registered: RegisteredOp | None = None

    @property
    def signature(self) -> str:
        return f"{self.module}.{self.qualname}"


@dataclass
class Call:
    """A call of a leaf as the user wrote it."""

    leaf: Leaf
    target: str
    arguments: list[dict[str, Any]]
    annotation: str | None


@dataclass
class Leaves:
    """Records the calls of leaves while a model is exported."""

    calls: list[Call] = field(default_factory=list)
    _known: dict[Any, Leaf] = field(default_factory=dict)
    _inside: bool = False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        functions: dict[Any, Callable] = {}
        scripted = {}
        for op in registered.values():
            if op.is_autograd_function:
                continue
            if isinstance(op.function, torch.jit.ScriptFunction):
                scripted[id(op.function)] = op
                continue
            functions[op.function] = self._handler(op)
        with calls_to(functions), calls_to_autograd_functions(self._autograd_call):
            if scripted:
                with _scripted_calls(scripted, self._call_registered):
                    yield
            else:
                yield

    def _handler(self, op: RegisteredOp) -> Callable:
        def handle(original: Callable, args: tuple, kwargs: dict) -> Any:
            return self._call_registered(op, original, args, kwargs)

        return handle

    def _call_registered(
        self, op: RegisteredOp, original: Callable, args: tuple, kwargs: dict
    ) -> Any:
        if self._inside or current_tracer() is None:
            return original(*args, **kwargs)
        leaf = self._known.get(op.signature)
        if leaf is None:
            leaf = Leaf(op.module, op.qualname, False, op.parameters, op)
            self._known[op.signature] = leaf
        return self._record(leaf, op.fake_fn or original, args, kwargs)

    def _autograd_call(self, cls: type, original: Callable, args: tuple) -> Any:
        if self._inside or current_tracer() is None or _is_tracers(cls):
            return original(*args)
        leaf = self._known.get(cls)
        if leaf is None:
            module, qualname = cls.__module__, f"{cls.__qualname__}.apply"
            check_importable(module, qualname, str(line_of_caller(sys._getframe(1)) or module))
            op = registered.get(f"{module}.{qualname}")
            leaf = Leaf(module, qualname, True, autograd_parameters(cls), op)
            self._known[cls] = leaf
        return self._record(leaf, original, args, {})

    def _record(self, leaf: Leaf, function: Callable, args: tuple, kwargs: dict) -> Any:
        where = line_of_caller(sys._getframe(2))
        call = f"{where}: {leaf.signature}" if where else leaf.signature
        tensors: list[torch.Tensor] = []
        annotation = _annotation_of(leaf, args, kwargs, call)
        inputs, outputs = operands(annotation, call) if annotation is not None else ([], [])
        arguments = [
            {"name": name, "keyword": keyword, **_value(name, value, tensors, call)}
            for name, keyword, value in _as_written(leaf, args, kwargs, len(inputs))
        ]
        self._inside = True
        try:
            with torch._C.DisableTorchFunction(), disable_proxy_modes_tracing():
                result = function(*args, **kwargs)
        finally:
            self._inside = False
        results = _results_of(result, call)
        if function is getattr(leaf.registered, "fake_fn", None) and torch.is_grad_enabled():
            if any(tensor.requires_grad for tensor in tensors):
                for made in results:  # What stands in need not tell; to think so is safe.
                    made.requires_grad_(made.is_floating_point() or made.is_complex())
        _drop_unread_symbols(results)
        if annotation is not None:
            _check_call(annotation, inputs, arguments, (len(results), len(outputs)), call)
        operator = _operator(leaf, "list" if _is_single(result) else len(results))
        _results.append(results)
        try:
            values = operator(tensors)
        finally:
            _results.clear()
        self._mark(operator, len(self.calls))
        self.calls.append(Call(leaf, str(operator), arguments, annotation))
        return type(result)(values) if isinstance(result, (tuple, list)) else values

    def _mark(self, operator: torch._ops.OpOverload, index: int) -> None:
        for node in reversed(current_tracer().graph.nodes):
            if node.target is operator:
                node.meta[CALL] = index
                return
        raise AssertionError(operator)


def _is_tracers(cls: type) -> bool:
    """Whether torch made an autograd Function for its own use, as its higher-order operators do."""
    return cls.__module__.startswith("torch.") and "<locals>" in cls.__qualname__


@contextlib.contextmanager
def _scripted_calls(ops: dict[int, RegisteredOp], handle: Callable) -> Iterator[None]:
    kind = torch.jit.ScriptFunction
    original = kind.__call__

    def call(self, *args, **kwargs):
        def plain(*args, **kwargs):
            return original(self, *args, **kwargs)

        op = ops.get(id(self))
        return plain(*args, **kwargs) if op is None else handle(op, plain, args, kwargs)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = original


# --- The operator ---


def _operator(leaf: Leaf, outputs: int | str) -> torch._ops.OpOverload:
    """The operator for a leaf that returns so many tensors, or "list" for a tuple or list of one."""
    key = (leaf.signature, outputs)
    if key in _operators:
        return _operators[key]
    name = re.sub(r"\W", "_", leaf.module) + "__" + re.sub(r"\W", "_", leaf.qualname)
    while _names.setdefault(name, leaf.signature) != leaf.signature:
        name += "_"
    overload = "" if outputs == 1 else f".{outputs}" if outputs == "list" else f".results{outputs}"
    returns = {1: "Tensor", "list": "Tensor[]"}.get(
        outputs
    ) or f"({', '.join(['Tensor'] * outputs)})"
    _library.define(f"{name}{overload}(Tensor[] tensors) -> {returns}")

    def kernel(tensors: list[torch.Tensor]) -> Any:
        results = _results[-1]
        if outputs == "list":
            return results
        return tuple(results) if len(results) > 1 else results[0] if results else None

    _library.impl(f"{name}{overload}", kernel, "Autograd")
    _library.impl(f"{name}{overload}", kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}{overload}", kernel, lib=_library)
    packet = getattr(getattr(torch.ops, NAMESPACE), name)
    _operators[key] = getattr(packet, overload[1:] or "default")
    return _operators[key]


# --- What a call takes and gives ---


def _as_written(
    leaf: Leaf, args: tuple, kwargs: dict, num_operands: int
) -> list[tuple[str, bool, Any]]:
    """The arguments of a call as (name, whether by keyword, value), in the order of the signature.

    Parameters that an operand of the annotation stands for are there even when they were left at
    their default: operands count from the first.
    """
    written: list[tuple[str, bool, Any]] = []
    rest = dict(kwargs)
    parameters = [] if leaf.parameters is None else list(leaf.parameters.parameters.values())
    for parameter in parameters:
        if parameter.kind == inspect.Parameter.VAR_POSITIONAL:
            begin = len(written)
            written += [(f"{parameter.name}_{i}", False, v) for i, v in enumerate(args[begin:])]
        elif parameter.kind == inspect.Parameter.VAR_KEYWORD:
            break
        elif parameter.kind != inspect.Parameter.KEYWORD_ONLY and len(written) < len(args):
            written.append((parameter.name, False, args[len(written)]))
        elif parameter.name in rest:
            written.append((parameter.name, True, rest.pop(parameter.name)))
        elif len(written) < num_operands and parameter.default is not inspect.Parameter.empty:
            written.append((parameter.name, True, parameter.default))
    if not parameters:
        written = [(f"arg_{i}", False, v) for i, v in enumerate(args)]
    return written + [(name, True, value) for name, value in rest.items()]


def _value(name: str, value: Any, tensors: list[torch.Tensor], call: str) -> dict[str, Any]:
    def number(tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        tensors.append(tensor)
        return len(tensors) - 1

    if isinstance(value, torch.Tensor):
        return {"tensor": number(value)}
    if isinstance(value, (tuple, list)) and any(isinstance(v, torch.Tensor) for v in value):
        if all(v is None or isinstance(v, torch.Tensor) for v in value):
            return {
                "tensors": [number(v) for v in value],
                "type": "tuple" if isinstance(value, tuple) else "list",
            }
        what = f"a {type(value).__name__} that mixes tensors with other values"
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        what = "a size that is only known at run time"
    else:
        try:
            return {"literal": literal(value)}
        except NotALiteral:
            what = f"a {type_name(type(value))}"
    raise InputError(
        f"{call}: argument {name} is {what}, which generated code cannot write down; pass tensors, lists of "
        "tensors, numbers, strings or None, and take sizes from a tensor inside the function"
    )


def _results_of(result: Any, call: str) -> list[torch.Tensor]:
    if result is None:
        return []
    results = [result] if isinstance(result, torch.Tensor) else result
    if type(results) in (tuple, list) and all(isinstance(r, torch.Tensor) for r in results):
        return list(results)
    kinds = (
        ", ".join(type_name(type(r)) for r in results)
        if isinstance(results, (tuple, list))
        else None
    )
    raise InputError(
        f"{call} returns {f'({kinds})' if kinds else 'a ' + type_name(type(result))}; a function that stays whole "
        "returns a tensor or a tuple of tensors"
    )


def _is_single(result: Any) -> bool:
    return isinstance(result, (tuple, list)) and len(result) == 1


def _drop_unread_symbols(results: list[torch.Tensor]) -> None:
    # Sizes that depend on data and stay inside the function are no business of the graph's.
    mode = torch._guards.detect_fake_mode(results)
    if mode is None or mode.shape_env is None:
        return
    pending = mode.shape_env.pending_fresh_unbacked_symbols
    if pending:
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        kept = free_unbacked_symbols(results)
        pending[:] = [s for s in pending if s in kept]


def _annotation_of(leaf: Leaf, args: tuple, kwargs: dict, call: str) -> str | None:
    """The annotation of a call, None where there is none."""
    annotation = leaf.registered.annotation if leaf.registered is not None else None
    if not callable(annotation):
        return annotation
    with torch._C.DisableTorchFunction(), disable_proxy_modes_tracing():
        made = annotation(*args, **kwargs)
    if not isinstance(made, str):
        raise InputError(
            f"{call}: its annotation function returned a {type(made).__name__}; return a string such as 'a b -> a b'"
        )
    return made


def _check_call(
    annotation: str,
    shapes: list[str],
    arguments: list[dict[str, Any]],
    num_outputs: tuple[int, int],
    call: str,
) -> None:
    """Checks that each tensor of a call has an operand, and each operand a tensor or '?'."""
    for argument, shape in zip_longest(arguments, shapes[: len(arguments)]):
        opaque = shape is not None and shape.partition(":")[0].strip() in ("?", "/")
        is_tensor, is_list = "tensor" in argument, "tensors" in argument
        what = f"{call}: argument {argument['name']} is"
        if shape is None and (is_tensor or is_list):
            raise InputError(
                f'{what} a tensor, and its annotation "{annotation}" has no input for it (it has {len(shapes)}); add '
                "one, or '?' if it is never split"
            )
        if shape is not None and not opaque and not is_tensor:
            value = "a list of tensors" if is_list else argument["literal"]
            raise InputError(
                f'{what} {value}, and its annotation "{annotation}" has "{shape}" for it; write \'?\' for what is no '
                "tensor"
            )
    returned, written = num_outputs
    if returned != written:
        raise InputError(
            f'{call} returned {count(returned, "tensor")}, and its annotation "{annotation}" has '
            f"{count(written, 'output')}; write one for each"
        )
