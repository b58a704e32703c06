"""Structures that a forward takes and returns: tuples, dicts, dataclasses and the like."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nnscaler.errors import InputError
from nnscaler.export.source import NotALiteral, literal, type_name

_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Containers:
    """Makes dataclasses and namedtuples known to the tracer for as long as an export runs."""

    def __init__(self) -> None:
        self._added: list[type] = []

    def learn(self, value: Any, place: str, advice: str) -> None:
        """Walks a structure, adds the classes met, and refuses what export cannot take apart.

        Args:
            value: what the sample holds, or what the forward returned.
            place: how messages call it: "Head.forward's argument b".
            advice: what messages recommend for an unknown class.
        """
        if value is None or isinstance(value, (torch.Tensor, bool, int, float, str, *_SIZES)):
            return
        cls = type(value)
        if "<locals>" in cls.__qualname__:
            name = type_name(cls).replace(".<locals>", "")
            raise InputError(
                f"{place} is a {name}, a class defined inside a function, where generated code cannot "
                "import it; move the class to the top of a module"
            )
        if cls not in pytree.SUPPORTED_NODES:
            if dataclasses.is_dataclass(value):
                pytree.register_dataclass(cls, serialized_type_name=type_name(cls))
                self._added.append(cls)
            elif pytree.is_namedtuple_instance(value):
                pytree._register_namedtuple(cls, serialized_type_name=type_name(cls))
                self._added.append(cls)
            else:
                try:
                    literal(value)
                except NotALiteral:
                    raise InputError(
                        f"{place} is a {type_name(cls)}, which export cannot take apart; {advice}"
                    ) from None
                return
        if dataclasses.is_dataclass(value):
            children = [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
        elif isinstance(value, dict):
            children = [(f"[{key!r}]", child) for key, child in value.items()]
        elif isinstance(value, (tuple, list)):
            children = [(f"[{i}]", child) for i, child in enumerate(value)]
        else:
            raise InputError(
                f"{place} is a {type_name(cls)}, which generated code cannot make; {advice}"
            )
        for suffix, child in children:
            self.learn(child, place + suffix, advice)

    def forget(self) -> None:
        while self._added:
            pytree._deregister_pytree_node(self._added.pop())


@contextlib.contextmanager
def containers() -> Iterator[Containers]:
    """Containers that are forgotten in the end, so that the user may register them later."""
    known = Containers()
    try:
        yield known
    finally:
        known.forget()


def describe(spec: pytree.TreeSpec, leaves: Iterator[tuple[int, Any]]) -> dict[str, Any]:
    """A structure as JSON; takes (index, value) of its leaves, in order, from `leaves`."""
    if spec.is_leaf():
        index, value = next(leaves)
        if isinstance(value, (torch.Tensor, *_SIZES)):
            return {"leaf": index}
        return {"literal": literal(value)}
    children = [describe(child, leaves) for child in spec.children()]
    cls = spec.type
    if cls is tuple:
        return {"tuple": children}
    if cls is list:
        return {"list": children}
    if pytree.is_namedtuple_class(cls) or cls is collections.namedtuple:
        cls = spec.context if cls is collections.namedtuple else cls
        return {"tuple": children, "type": type_name(cls)}
    if dataclasses.is_dataclass(cls):
        names, absent = _fields(spec)
        fields = dict(zip(names, children, strict=True)) | {n: {"literal": "None"} for n in absent}
        order = [f.name for f in dataclasses.fields(cls) if f.name in fields]
        return {"object": type_name(cls), "fields": [[name, fields[name]] for name in order]}
    if issubclass(cls, dict):
        result = {"dict": [[literal(key), c] for key, c in zip(_keys(spec), children, strict=True)]}
        if cls in (
            dict,
            collections.defaultdict,
        ):  # whose factory has no name: a dict holds the same
            return result
        return {**result, "type": type_name(cls)}
    raise AssertionError(cls)  # Containers.learn let nothing else through.


def _fields(spec: pytree.TreeSpec) -> tuple[list[str], list[str]]:
    # A dict that is a dataclass too (transformers' ModelOutput) has the names of what it holds;
    # a plain dataclass has those with a value and those that are None.
    if issubclass(spec.type, dict):
        return _keys(spec), []
    present, absent = spec.context
    return list(present), list(absent)


def _keys(spec: pytree.TreeSpec) -> list[Any]:
    context = spec.context
    return list(context[1] if spec.type is collections.defaultdict else context)
