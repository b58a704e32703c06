"""Catches calls while a model is exported, whatever name they are made through.

A module that said `from torch.utils.checkpoint import checkpoint` long ago holds the function itself,
so replacing the attribute `torch.utils.checkpoint.checkpoint` would miss it. Instead the function's
code is replaced for a while: every reference to the function then leads here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.autograd import function as autograd_function

#: Called as handler(original, args, kwargs); `original` is the function as it was.
Handler = Callable[[Callable, tuple, dict], Any]


def current_tracer() -> Any:
    """The tracer of the export that runs in this thread, None while it executes an operator."""
    mode = torch._ops._get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
    return None if mode is None else mode.tracer


def _detour(*args, **kwargs):
    handler = 0xDE7002  # replaced in the copies of this code
    return handler(args, kwargs)


def _code_calling(handler: Callable, like: CodeType) -> CodeType:
    code = _detour.__code__
    return code.replace(
        co_consts=tuple(handler if c == 0xDE7002 else c for c in code.co_consts),
        co_name=like.co_name,
        co_freevars=like.co_freevars,  # as many as the function's closure has
    )


def _copy(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    return copy


@contextlib.contextmanager
def calls_to(handlers: Mapping[FunctionType, Handler]) -> Iterator[None]:
    """Sends this thread's calls of the functions to their handlers."""
    thread = threading.get_ident()
    saved: list[tuple[FunctionType, CodeType]] = []

    def bind(original: Callable, handler: Handler) -> Callable:
        def call(args: tuple, kwargs: dict) -> Any:
            if threading.get_ident() != thread:
                return original(*args, **kwargs)
            return handler(original, args, kwargs)

        return call

    try:
        for function, handler in handlers.items():
            saved.append((function, function.__code__))
            call = bind(_copy(function), handler)
            function.__code__ = _code_calling(call, like=function.__code__)
        yield
    finally:
        for function, code in saved:
            function.__code__ = code


@contextlib.contextmanager
def calls_to_autograd_functions(handler: Callable[[type, Callable, tuple], Any]) -> Iterator[None]:
    """Sends this thread's calls of any `torch.autograd.Function.apply` to handler(cls, original, args).

    `Function.apply` ends in its base class's `apply`, also where it was bound long ago (`f = Fn.apply`).
    """
    thread = threading.get_ident()
    base = autograd_function._SingleLevelFunction

    def apply(cls, *args):
        original = super(base, cls).apply
        if threading.get_ident() != thread:
            return original(*args)
        return handler(cls, original, args)

    base.apply = classmethod(apply)
    try:
        yield
    finally:
        del base.apply


@contextlib.contextmanager
def reads_of_training(note: Callable[[torch.nn.Module], None]) -> Iterator[None]:
    """Calls note(module) at each read of `module.training` in this thread."""
    thread = threading.get_ident()

    class Training:
        def __get__(self, module: torch.nn.Module | None, owner: type) -> Any:
            if module is None:
                return self
            if threading.get_ident() == thread:
                note(module)
            try:
                return module.__dict__["training"]
            except KeyError:
                raise AttributeError(
                    f"'{owner.__name__}' object has no attribute 'training'"
                ) from None

        def __set__(self, module: torch.nn.Module, value: bool) -> None:
            module.__dict__["training"] = value

    torch.nn.Module.training = Training()
    try:
        yield
    finally:
        del torch.nn.Module.training
