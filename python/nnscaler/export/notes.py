"""What the tracer would forget of a node: whether a gradient flows into it, and the user's lines."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental import proxy_tensor
from torch.fx.proxy import TracerBase

from nnscaler.export.source import is_users

_KEY = "nnscaler_requires_grad"


@contextlib.contextmanager
def taking_notes() -> Iterator[None]:
    """Notes on each node whether its value, or each of its values, requires a gradient.

    The tracer keeps values detached. Its stack traces have only the lines of `forward`s, torch's own
    among them: here they have the user's, and below the innermost those of the functions called there.
    """
    set_meta, filter_frames = proxy_tensor.set_meta, TracerBase._filter_traceback_frames

    def noting_set_meta(proxy: Any, value: Any) -> Any:
        proxy.node.meta[_KEY] = _flags(value)
        return set_meta(proxy, value)

    proxy_tensor.set_meta = noting_set_meta
    TracerBase._filter_traceback_frames = lambda self, summary: _users_frames(summary)
    try:
        yield
    finally:
        proxy_tensor.set_meta = set_meta
        TracerBase._filter_traceback_frames = filter_frames


def _flags(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return [_flags(v) for v in value] if isinstance(value, (tuple, list)) else False


def _users_frames(summary: traceback.StackSummary) -> traceback.StackSummary:
    forwards = [i for i, frame in enumerate(summary) if frame.name == "forward"]
    innermost = forwards[-1] if forwards else len(summary)
    kept = [summary[i] for i in (*forwards, *range(innermost + 1, len(summary)))]
    return traceback.StackSummary.from_list([f for f in kept if is_users(f.filename)])


def write_gradients(graph_module: fx.GraphModule) -> None:
    """Gives the values in the nodes' metadata, which the archive is written from, their flag."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
            for body in node.args:
                if isinstance(body, fx.Node) and body.op == "get_attr":
                    node.meta[_KEY] = _write_body(graph_module.get_submodule(body.target))
        if node.op == "call_function" and node.args and _KEY not in node.meta:
            source = node.args[0]  # of a getitem that an operator with a body needs
            flags = source.meta.get(_KEY) if isinstance(source, fx.Node) else None
            if isinstance(flags, list) and isinstance(node.args[-1], int):
                node.meta[_KEY] = flags[node.args[-1]]
        if node.op == "call_function":
            _set(node.meta.get("val"), node.meta.get(_KEY, False))


def _write_body(body: fx.GraphModule) -> list[Any]:
    write_gradients(body)
    (output,) = (node for node in body.graph.nodes if node.op == "output")
    return [n.meta.get(_KEY, False) if isinstance(n, fx.Node) else False for n in output.args[0]]


def _set(value: Any, flag: Any) -> None:
    if isinstance(value, torch.Tensor):
        if isinstance(flag, bool) and (value.is_floating_point() or value.is_complex()):
            value.requires_grad_(flag)
    elif isinstance(value, (tuple, list)) and isinstance(flag, list):
        for v, f in zip(value, flag, strict=False):
            _set(v, f)
