"""The sample arguments that a model is exported with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nnscaler.errors import InputError
from nnscaler.export.refusals import forward_of
from nnscaler.export.source import NotALiteral, literal, type_name
from nnscaler.export.trees import Containers, describe
from nnscaler.register import get_dynamic

_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "var_positional",
    inspect.Parameter.VAR_KEYWORD: "var_keyword",
}
_SUPPORTED = "pass tensors, numbers, strings, None, and tuples, lists, dicts, namedtuples or dataclasses of those"


class Sample:
    """Sample arguments, fit for the tracer: kwargs in the order of the signature, tensors distinct.

    Tensors on the meta device become zeros on the CPU: literals that a forward makes keep their values
    only where the other operands are on a device.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        args: Any,
        kwargs: Any,
        known: Containers,
        dynamic_shapes: Any,
    ) -> None:
        forward = f"{type(module).__name__}.forward"
        self.signature = inspect.signature(module.forward)
        if not isinstance(args, (tuple, list)):
            raise InputError(
                f"{forward}: args is a {type_name(type(args))}; give a tuple of sample arguments, such as (x,)"
            )
        if not (kwargs is None or isinstance(kwargs, Mapping)):
            raise InputError(
                f"{forward}: kwargs is a {type_name(type(kwargs))}; give a dict of sample arguments"
            )
        try:
            bound = self.signature.bind(*args, **(kwargs or {}))
        except TypeError as error:
            raise InputError(
                f"{forward_of(module)}: the sample arguments do not fit "
                f"{forward}{self.signature}: {error}; give args and kwargs as the model is called"
            ) from None
        for name, value in bound.arguments.items():
            known.learn(value, f"{forward}'s argument {name}", _SUPPORTED)
        ordered = _by_signature(self.signature, kwargs or {})
        self.args, self.kwargs = _distinct(module, tuple(args), ordered)
        self.dynamic_shapes = _dynamic_shapes(module, self.args, self.kwargs, dynamic_shapes)
        self._names = {n for n in bound.arguments}

    def parameters(self) -> list[dict[str, Any]]:
        """The parameters of forward, as extra/nnscaler.json lists them."""
        leaves, _ = pytree.tree_flatten((self.args, self.kwargs))
        indices = pytree.tree_unflatten(
            range(len(leaves)), pytree.tree_flatten((self.args, self.kwargs))[1]
        )
        where = self.signature.bind(*indices[0], **indices[1]).arguments
        values = self.signature.bind(*self.args, **self.kwargs).arguments
        result = []
        for name, parameter in self.signature.parameters.items():
            entry: dict[str, Any] = {"name": name, "kind": _KINDS[parameter.kind]}
            if parameter.default is not inspect.Parameter.empty:
                try:
                    entry["default"] = literal(parameter.default)
                except NotALiteral:
                    if name not in values:
                        continue  # The generated forward does without it.
            if name in values:
                flat, spec = pytree.tree_flatten(values[name])
                entry["tree"] = describe(
                    spec, iter(zip(pytree.tree_leaves(where[name]), flat, strict=True))
                )
            result.append(entry)
        return result


def _by_signature(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: kwargs[name] for name in signature.parameters if name in kwargs}
    return named | {name: value for name, value in kwargs.items() if name not in named}


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def _distinct(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    taken = {_storage(p) for p in module.parameters()} | {_storage(b) for b in module.buffers()}

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensor = value.detach()
        if tensor.is_meta or torch._subclasses.fake_tensor.is_fake(tensor):
            with torch._C._DisableTorchDispatch():
                tensor = torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)
        elif _storage(tensor) in taken:
            tensor = tensor.clone()
        taken.add(_storage(tensor))
        if value.requires_grad:
            tensor.requires_grad_()
        if dims := get_dynamic(value):
            tensor._nnscaler_dynamic_dims = dims
        return tensor

    return pytree.tree_map(own, (args, kwargs))


def _dynamic_shapes(module: torch.nn.Module, args: tuple, kwargs: dict, given: Any) -> Any:
    if given is not None:
        return given
    shapes = torch.export.ShapesCollection()
    marked = False
    for leaf in pytree.tree_leaves((args, kwargs)):
        if dims := get_dynamic(leaf):
            shapes[leaf] = {dim: torch.export.Dim.DYNAMIC for dim in dims}
            marked = True
    return shapes.dynamic_shapes(module, args, kwargs) if marked else None
