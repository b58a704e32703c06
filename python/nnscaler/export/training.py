"""How the model behaves in evaluation, seen from its training graph.

A model tells training from evaluation by reading `module.training`. Most reads only hand the flag on
(dropout, batch norm) or choose between equal values; that is seen from the source of the read, so that
a second export is needed only for the others.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.export import ExportedProgram

from nnscaler.export.intercept import reads_of_training
from nnscaler.export.source import Line, line_in, line_of_caller, nodes_at
from nnscaler.export.tensors import without_value

_SAME, _FLAG, _UNKNOWN = "same", "flags", "unknown"

# They take the flag as an argument, and their operators too.
_TAKE_FLAG = {
    F.alpha_dropout,
    F.batch_norm,
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.feature_alpha_dropout,
    F.rrelu,
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_DROPOUTS = {
    torch.ops.aten.alpha_dropout.default,
    torch.ops.aten.dropout.default,
    torch.ops.aten.feature_alpha_dropout.default,
    torch.ops.aten.feature_dropout.default,
}

# Arguments of operators that say training or evaluation: the flag itself (the probability `p` beside it
# counts for nothing in evaluation), or what it switches on.
_FLAG_ARGUMENTS = {
    "alpha_dropout": "train",
    "batch_norm": "training",
    "dropout": "train",
    "feature_alpha_dropout": "train",
    "feature_dropout": "train",
    "gru": "train",
    "lstm": "train",
    "rnn_relu": "train",
    "rnn_tanh": "train",
    "rrelu": "training",
    "scaled_dot_product_attention": "dropout_p",
}


@dataclass
class TrainingReads:
    """Notes where a forward reads `training`, and what it does with it."""

    module: nn.Module
    modes: set[str] = field(default_factory=set)
    unknown: dict[Line, None] = field(default_factory=dict)  # lines of reads to be tried, in order
    _seen: dict[Any, tuple[str, Any]] = field(default_factory=dict)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        modules = {id(m) for m in self.module.modules()}

        def note(module: nn.Module) -> None:
            if id(module) in modules:
                self._note(module, sys._getframe(2))

        with reads_of_training(note):
            yield

    def _note(self, module: nn.Module, frame: types.FrameType) -> None:
        key = (frame.f_code, frame.f_lasti)
        if key not in self._seen:
            self._seen[key] = _what_for(module, frame)
        mode, choice = self._seen[key]
        if choice is not None:
            mode = _SAME if choice.is_equal(frame) else _UNKNOWN
        self.modes.add(mode)
        if mode == _UNKNOWN:
            line = line_of_caller(frame) or line_in(frame)
            self.unknown[line._replace(columns=None)] = None


@dataclass
class _Choice:
    """`a if module.training else b`: its two values, where computing them has no effects."""

    values: tuple[types.CodeType, types.CodeType]

    def is_equal(self, frame: types.FrameType) -> bool:
        try:
            a, b = (eval(code, frame.f_globals, frame.f_locals) for code in self.values)
            return type(a) in (bool, int, float, str, type(None)) and a == b
        except Exception:
            return False


def _what_for(module: nn.Module, frame: types.FrameType) -> tuple[str, _Choice | None]:
    if (
        type(module) in _BATCH_NORMS
        and frame.f_code is nn.modules.batchnorm._BatchNorm.forward.__code__
    ):
        return _FLAG, None
    nodes = nodes_at(line_in(frame))
    if len(nodes) < 2 or not (isinstance(nodes[0], ast.Attribute) and nodes[0].attr == "training"):
        return _UNKNOWN, None
    read, parent, rest = nodes[0], nodes[1], nodes[2:]
    if isinstance(parent, ast.keyword) and rest:
        parent = rest[0]
    if isinstance(parent, ast.Call) and parent.func is not read:
        return (_FLAG if _value_of(parent.func, frame) in _TAKE_FLAG else _UNKNOWN), None
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not) and rest:
        read, parent = parent, rest[0]
    if isinstance(parent, ast.IfExp) and parent.test is read:
        if all(_is_plain(e) for e in (parent.body, parent.orelse)):
            codes = tuple(
                compile(ast.fix_missing_locations(ast.Expression(e)), "<choice>", "eval")
                for e in (parent.body, parent.orelse)
            )
            return _UNKNOWN, _Choice(codes)
    return _UNKNOWN, None


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return _is_plain(node.value)
    return isinstance(node, (ast.Constant, ast.Name))


def _value_of(node: ast.expr, frame: types.FrameType) -> Any:
    if not _is_plain(node):
        return None
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<callee>", "eval")
    try:
        value = eval(code, frame.f_globals, frame.f_locals)
        return value if isinstance(value, types.FunctionType) else None
    except Exception:
        return None


# --- Two graphs side by side ---


class _Differ(Exception):
    def __init__(self, node: fx.Node | None) -> None:
        self.node = node


def batch_norm_counters(graph_module: fx.GraphModule) -> list[str]:
    """Nodes that count the batches of a batch norm: they run in training only."""
    return [
        node.name
        for module in graph_module.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
        if node.target is torch.ops.aten.add_.Tensor and _is_in_batch_norm(node)
    ]


def _is_in_batch_norm(node: fx.Node) -> bool:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return bool(stack) and str(stack[-1][1]).startswith("torch.nn.modules.batchnorm.BatchNorm")


def compare(
    training: ExportedProgram, evaluation: ExportedProgram
) -> tuple[str, list[str], fx.Node | None]:
    """Compares the programs of the two modes.

    Returns:
        `"same"`, `"flags"` (operators that take the flag, and operators that only training has) or
        `"differs"`; the names of nodes that only training has; the first node that differs.
    """
    comparison = _Comparison()
    try:
        if training.call_spec.out_spec != evaluation.call_spec.out_spec:
            raise _Differ(None)
        comparison.constants(training.constants, evaluation.constants)
        comparison.graphs(training.graph_module, evaluation.graph_module)
    except _Differ as found:
        return "differs", [], found.node
    mode = "flags" if comparison.flags or comparison.extra else "same"
    return mode, [n.name for n in comparison.extra if n.target is not operator.getitem], None


class _Comparison:
    def __init__(self) -> None:
        self.flags = False
        self.extra: list[fx.Node] = []  # of the training graph
        self._partner: dict[fx.Node, fx.Node] = {}  # evaluation node -> training node
        self._copies: dict[fx.Node, fx.Node] = {}  # training node -> what it copies

    def constants(self, a: dict[str, Any], b: dict[str, Any]) -> None:
        for name, value in a.items():
            other = b.get(name)
            if isinstance(value, torch.Tensor) and not without_value(value):
                if not (isinstance(other, torch.Tensor) and torch.equal(value, other)):
                    raise _Differ(None)

    def graphs(self, training: fx.GraphModule, evaluation: fx.GraphModule) -> None:
        extra: set[fx.Node] = set()
        left = iter(training.graph.nodes)
        for node in evaluation.graph.nodes:
            for candidate in left:
                if self._equal(candidate, node, training, evaluation):
                    self._partner[node] = candidate
                    break
                if candidate.op not in ("call_function", "get_attr"):
                    raise _Differ(candidate)
                if candidate.target is torch.ops.aten.contiguous.default:
                    # Attention gives other strides with dropout, and then a copy is made.
                    self._copies[candidate] = self._copies.get(candidate.args[0], candidate.args[0])
                elif candidate.target in _DROPOUTS:  # in evaluation it returns what it is given
                    self._copies[candidate] = self._copies.get(candidate.args[0], candidate.args[0])
                    self.flags = True
                else:
                    extra.add(candidate)
            else:
                raise _Differ(node)
        for node in training.graph.nodes:
            if node in extra:
                if any(user not in extra for user in node.users):
                    raise _Differ(node)
                if node.op == "call_function":
                    self.extra.append(node)

    def _equal(self, a: fx.Node, b: fx.Node, left: fx.GraphModule, right: fx.GraphModule) -> bool:
        if a.op != b.op:
            return False
        if a.op == "placeholder":
            return True
        if a.op == "get_attr":
            return self._equal_bodies(left.get_submodule(a.target), right.get_submodule(b.target))
        if a.target != b.target:
            return False
        args_a, args_b = _arguments(a), _arguments(b)
        flag = _FLAG_ARGUMENTS.get(getattr(a.target, "_opname", ""))
        if args_a.keys() != args_b.keys():
            return False
        ignored = {flag, "p"} if args_b.get(flag) is False else {flag}
        if not all(self._same(v, args_b[n]) for n, v in args_a.items() if n not in ignored):
            return False
        self.flags |= args_a.get(flag) != args_b.get(flag)
        return True

    def _equal_bodies(self, a: fx.GraphModule, b: fx.GraphModule) -> bool:
        before = self.flags, list(self.extra)
        try:
            self.graphs(a, b)
            return True
        except _Differ:
            self.flags, self.extra = before
            return False

    def _same(self, a: Any, b: Any) -> bool:
        if isinstance(a, fx.Node):
            a = self._copies.get(a, a)
            return isinstance(b, fx.Node) and self._partner.get(b) is a
        if isinstance(a, (tuple, list)):
            return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(self._same, a, b))
        return type(a) is type(b) and (a == b or a != a)


def _arguments(node: fx.Node) -> dict[str, Any]:
    """An operator's arguments by name, those left at their default too."""
    schema = getattr(node.target, "_schema", None)
    arguments = list(schema.arguments) if schema is not None else []
    names = [a.name for a in arguments] + [str(i) for i in range(len(arguments), len(node.args))]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
