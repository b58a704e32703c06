"""Functions that stay whole, and marks that a forward may carry.

@nnscaler.register_op("b t^ d, d -> b t^ d")
def scaled(x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor: ...
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nnscaler.errors import InputError, UnsupportedError
from nnscaler.export.source import Line

__all__ = [
    "register_op",
    "anchor",
    "mark_dynamic",
    "get_dynamic",
    "constant_folding",
    "no_constant_folding",
    "fold_constant",
]

Annotation = str | Callable[..., str]

_RESERVED = ("_operator.", "torch.", "nnscaler.runtime.function.")
_DYNAMIC = "_nnscaler_dynamic_dims"


@dataclass
class RegisteredOp:
    """A function, or an autograd Function, that the user registered."""

    module: str  # "pkg.ops", to import
    qualname: str  # "fn", "Fn.apply"
    name: str  # as policies see it
    annotation: Annotation
    function: Callable  # the function itself, or the autograd Function's class
    parameters: inspect.Signature | None  # of the call; None where Python does not know
    fake_fn: Callable | None = None
    input_gen_fn: Callable | None = None
    where: Line | str = ""  # of its definition; the module's name where Python does not know

    @property
    def signature(self) -> str:
        return f"{self.module}.{self.qualname}"

    @property
    def is_autograd_function(self) -> bool:
        return isinstance(self.function, type)


#: What is registered, by signature.
registered: dict[str, RegisteredOp] = {}


def register_op(
    annotation: Annotation,
    name: str | None = None,
    code_impl_pattern: str = "import",
    *,
    emit_fn: Callable | None = None,
    transform_rules: Sequence | None = None,
    input_gen_fn: Callable | None = None,
    fake_fn: Callable | None = None,
) -> Callable[[Any], Any]:
    """Registers a function as one operator with a dimension rule.

    A registered function is not traced: the generated code imports it and calls it on the parts that
    the plan gives it, so its own backward runs. It may be a function of a module, a
    `torch.autograd.Function` (or its `apply`), a function compiled by `torch.compile`, or a scripted one.

    The annotation's inputs are the leading parameters in the order of the signature; a tensor passed by
    keyword counts by its name.

    Args:
        annotation: a rule such as `"b m^ k+, n k+ -> b m^ n"`, or a function that takes the arguments of a
            call (tensors that have a shape and no values) and returns one.
        name: what policies see; the function's own name by default.
        code_impl_pattern: `"import"`, the only one.
        emit_fn, transform_rules: of nnScaler; not offered.
        input_gen_fn: `(node) -> list of tensors`, what the operator profiler runs the function on.
        fake_fn: stands in for the function while a model is exported; same parameters, and results of the
            same shapes. For functions that cannot run on tensors without values.

    Returns:
        A decorator that returns what it is given.

    Raises:
        InputError: when it is applied to what cannot be registered, or the annotation does not fit.
    """
    if not (isinstance(annotation, str) or callable(annotation)):
        raise InputError(
            "register_op: the annotation is a string or a function that returns one, not a "
            f"{type(annotation).__name__}; write @nnscaler.register_op('a b -> a b')"
        )
    if code_impl_pattern != "import":
        if code_impl_pattern == "source":
            raise UnsupportedError(
                "register_op: code_impl_pattern='source' is not offered: generated code imports the function; "
                "leave it out"
            )
        raise InputError(
            f"register_op: code_impl_pattern is {code_impl_pattern!r}; write 'import' or leave it out"
        )
    for option, value in (("emit_fn", emit_fn), ("transform_rules", transform_rules)):
        if value:
            raise UnsupportedError(
                f"register_op: {option} is not offered: a function is split as its annotation says; leave it out "
                "and write the rule as an annotation"
            )
    for option, value in (("input_gen_fn", input_gen_fn), ("fake_fn", fake_fn)):
        if value is not None and not callable(value):
            raise InputError(f"register_op: {option} is a {type(value).__name__}, not a function")

    def decorate(target: Any) -> Any:
        op = _describe(target, annotation, name)
        if fake_fn is not None and op.is_autograd_function:
            raise InputError(
                f"{op.where}: fake_fn is given for {op.signature}, and an autograd Function needs none; leave it out"
            )
        op.fake_fn, op.input_gen_fn = fake_fn, input_gen_fn
        if isinstance(annotation, str):
            _check_annotation(op, annotation)
        _add(op)
        return target

    return decorate


def _add(op: RegisteredOp) -> None:
    previous = registered.get(op.signature)
    # A module that is loaded again registers its functions again: new objects from the same lines.
    if previous and (previous.function is op.function or previous.where != op.where):
        raise InputError(
            f"{op.where}: {op.signature} is registered already, as {_shown(previous.annotation)}, and now as "
            f"{_shown(op.annotation)}; register it once"
        )
    registered[op.signature] = op


def _describe(target: Any, annotation: Annotation, name: str | None) -> RegisteredOp:
    function = target
    if inspect.ismethod(target) and _is_autograd_function(target.__self__):
        if target.__name__ != "apply":
            raise InputError(
                f"register_op: {target.__qualname__} is a method; register the autograd Function itself"
            )
        function = target.__self__
    code = None
    if _is_autograd_function(function):
        module, qualname = function.__module__, f"{function.__qualname__}.apply"
        parameters = autograd_parameters(function)
        code = getattr(function.forward, "__code__", None)
    elif isinstance(function, torch.jit.ScriptFunction):
        module, qualname, parameters = _module_of_script(function), function.name, None
    elif isinstance(function, types.FunctionType):
        module, qualname = function.__module__, function.__qualname__
        parameters = inspect.signature(function)
        code = inspect.unwrap(function).__code__
    else:
        raise InputError(
            f"register_op: {getattr(target, '__name__', target)} is a {type(target).__name__}; register a Python function, an autograd "
            "Function or a scripted function (wrap it in a function of a module)"
        )
    where = Line(code.co_filename, code.co_firstlineno) if code is not None else module
    if f"{module}.{qualname}".startswith(_RESERVED):
        raise InputError(
            f"{where}: {module}.{qualname} is an operator that nnscaler knows; it needs no registration"
        )
    check_importable(module, qualname, where)
    own_name = qualname.removesuffix(".apply").rpartition(".")[2]
    return RegisteredOp(
        module, qualname, name or own_name, annotation, function, parameters, where=where
    )


def _module_of_script(function: torch.jit.ScriptFunction) -> str:
    module = getattr(function, "__module__", None)
    if isinstance(module, str) and not module.startswith("torch"):
        return module
    frame = sys._getframe(3)  # of whoever decorates
    return frame.f_globals["__name__"]


def _is_autograd_function(target: Any) -> bool:
    return isinstance(target, type) and issubclass(target, torch.autograd.Function)


def autograd_parameters(cls: type[torch.autograd.Function]) -> inspect.Signature | None:
    """Parameters of an autograd Function's `apply`: those of its forward without `ctx`."""
    try:
        signature = inspect.signature(cls.forward)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    has_setup = cls.setup_context is not torch.autograd.Function.setup_context
    if not has_setup and parameters and parameters[0].kind != inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def check_importable(module: str, qualname: str, where: Line | str) -> None:
    """Makes sure that generated code can import a function or an autograd Function.

    Raises:
        InputError: for lambdas, nested functions, and those of an interactive session.
    """
    what = "autograd Function" if qualname.endswith(".apply") else "function"
    name = qualname.removesuffix(".apply").replace(".<locals>", "")
    if name.endswith("<lambda>"):
        raise InputError(
            f"{where}: a lambda has no name that generated code could import; define a function in a module"
        )
    if "<locals>" in qualname:
        place = "inside a function"
    elif module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        place = "in an interactive session"
    else:
        return
    raise InputError(
        f"{where}: {what} {name} is defined {place}, where generated code cannot import it; move it to the top of a "
        "module"
    )


def _shown(annotation: Annotation) -> str:
    return f'"{annotation}"' if isinstance(annotation, str) else "a function"


# --- Annotations, as far as Python needs to know them ---

_DIMENSION = re.compile(r"(?:[A-Za-z_]\w*|\d+|\*)[+^]?|\?|/")


def operands(annotation: str, where: Line | str) -> tuple[list[str], list[str]]:
    """Splits an annotation into the rules of its inputs and of its outputs.

    The core reads the whole language; this finds what is wrong before a model is exported.

    Raises:
        InputError: the text is no annotation.
    """

    def fail(what: str) -> InputError:
        return InputError(
            f'{where}: annotation "{annotation}" {what}; write inputs -> outputs, tensors separated by commas, '
            'dimensions by blanks, as in "b m^ k+, n k+ -> b m^ n"'
        )

    sides = annotation.split("->")
    if len(sides) != 2:
        raise fail("has no '->'" if len(sides) == 1 else "has more than one '->'")
    result = []
    for side in sides:
        shapes = [shape.strip() for shape in side.split(",")] if side.strip() else []
        for shape in shapes:
            dims, _, _ = shape.partition(":")
            if not dims.strip():
                raise fail("has an empty operand")
            depth = 0
            for token in dims.replace("(", " ( ").replace(")", " ) ").split():
                if token in "()":
                    depth += 1 if token == "(" else -1
                    if depth not in (0, 1):
                        raise fail("has brackets that do not match")
                elif not _DIMENSION.fullmatch(token):
                    raise fail(f"has {token!r}, which is no dimension")
            if depth:
                raise fail("has brackets that do not match")
        result.append(shapes)
    return result[0], result[1]


def _check_annotation(op: RegisteredOp, annotation: str) -> None:
    inputs, outputs = operands(annotation, op.where)
    if op.parameters is None:
        return
    hints = _hints(op)
    parameters = list(op.parameters.parameters.values())
    short = op.signature.removesuffix(".apply").rpartition(".")[2]
    listed = f"{short}({', '.join(_with_hint(p, hints) for p in parameters)})"
    wrote = f'{op.where}: annotation "{annotation}" has'
    if all(p.kind != inspect.Parameter.VAR_POSITIONAL for p in parameters):
        bound = [p for p in parameters if p.kind != inspect.Parameter.VAR_KEYWORD][: len(inputs)]
        unbound = [
            p.name
            for p in parameters
            if p not in bound
            and p.default is inspect.Parameter.empty
            and _kind(hints.get(p.name)) in ("tensor", "list")
        ]
        if len(bound) < len(inputs) or unbound:
            problem = (
                f"none of them is for {', '.join(unbound)} of {listed}"
                if unbound
                else f"{listed} has {count(len(bound), 'parameter')}"
            )
            raise InputError(
                f"{wrote} {count(len(inputs), 'input')} ({'; '.join(inputs)}), and {problem}; write one input for each "
                "leading parameter, '?' for what is no tensor"
            )
        for shape, parameter in zip(inputs, bound, strict=True):
            kind = _kind(hints.get(parameter.name))
            if kind in ("list", "other") and shape.partition(":")[0].strip() not in ("?", "/"):
                raise InputError(
                    f"{wrote} \"{shape}\" for {parameter.name}, which is no tensor in {listed}; write '?' for it, or "
                    "put the tensors first"
                )
    returned = _num_returned(hints.get("return"))
    if returned is not None and returned != len(outputs):
        raise InputError(
            f"{wrote} {count(len(outputs), 'output')}, and {short} returns {count(returned, 'tensor')}; write one "
            "output for each"
        )


def count(number: int, noun: str) -> str:
    """ "1 tensor", "2 tensors"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _hints(op: RegisteredOp) -> dict[str, Any]:
    function = op.function.forward if op.is_autograd_function else op.function
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that exist only for type checkers
        return {}


def _kind(hint: Any) -> str:
    """What a hint says of a parameter: "tensor", "list" (of tensors), "other", or "" for nothing."""
    if isinstance(hint, type) and issubclass(hint, torch.Tensor):
        return "tensor"
    if hint in (int, float, bool, str, complex, torch.dtype, torch.device):
        return "other"
    kinds = {_kind(h) for h in typing.get_args(hint) if h not in (type(None), Ellipsis)}
    kind = kinds.pop() if len(kinds) == 1 else ""
    if typing.get_origin(hint) in (list, tuple, collections.abc.Sequence):
        return {"tensor": "list", "other": "other"}.get(kind, "")
    return kind


def _with_hint(parameter: inspect.Parameter, hints: dict[str, Any]) -> str:
    hint = hints.get(parameter.name)
    shown = (
        getattr(hint, "__name__", None)
        if isinstance(hint, type)
        else str(hint).replace("typing.", "")
    )
    return parameter.name if hint is None else f"{parameter.name}: {shown}"


def _num_returned(hint: Any) -> int | None:
    if isinstance(hint, type) and issubclass(hint, torch.Tensor):
        return 1
    args = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and args and Ellipsis not in args:
        return len(args)
    return None


# --- Marks in a forward ---

#: While a model is exported, what takes the names of its anchors.
_anchors: list[Callable[[str], None]] = []


def anchor(name: str) -> None:
    """Marks a place in a forward that a policy may look for."""
    if not isinstance(name, str):
        raise InputError(f"anchor: the name is a {type(name).__name__}; give a string")
    if _anchors:
        _anchors[-1](name)


def mark_dynamic(tensor: torch.Tensor, dims: int | Sequence[int]) -> torch.Tensor:
    """Says of a sample input that the lengths of some dimensions vary from call to call.

    Export then keeps them as symbols, and they are not split. Marks made earlier are replaced.

    Returns:
        The tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"mark_dynamic: expected a tensor, not a {type(tensor).__name__}")
    marked = set()
    for dim in (dims,) if isinstance(dims, int) else dims:
        if not -tensor.dim() <= dim < tensor.dim():
            raise InputError(
                f"mark_dynamic: the tensor has {tensor.dim()} dimensions, and none is {dim}"
            )
        marked.add(dim % tensor.dim())
    setattr(tensor, _DYNAMIC, marked)
    return tensor


def get_dynamic(x: Any) -> set[int]:
    """The dimensions that `mark_dynamic` marked."""
    return set(getattr(x, _DYNAMIC, ()))


@contextlib.contextmanager
def constant_folding(constant_folding: bool = True) -> Iterator[None]:
    """Accepted for nnScaler's sake: sizes and constants are always computed when a model is exported."""
    yield


def no_constant_folding() -> contextlib.AbstractContextManager[None]:
    """As `constant_folding(False)`."""
    return constant_folding(False)


def fold_constant(a: Any) -> Any:
    """Returns a value that is no tensor: it becomes a literal in the generated code.

    Raises:
        InputError: there is a tensor in it.
    """
    for leaf in torch.utils._pytree.tree_leaves(a):
        if isinstance(leaf, torch.Tensor):
            raise InputError(
                "fold_constant: a tensor is no constant; give a number, a string, or a list of those"
            )
    return a
