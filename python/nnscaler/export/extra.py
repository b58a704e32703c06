"""What an archive does not hold, as extra/nnscaler.json."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._sympy.numbers import int_oo

from nnscaler.export.leaves import CALL, Call
from nnscaler.export.regions import REGIONS, Region

#: In the metadata of a node: the numbers of the anchors that come right after it.
ANCHORS = "nnscaler_anchors"


def all_nodes(program: ExportedProgram) -> Iterator[fx.Node]:
    """Operators, those in the bodies of `no_grad` and autocast regions where the body is called."""

    def walk(module: fx.GraphModule) -> Iterator[fx.Node]:
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                for arg in node.args:
                    if isinstance(arg, fx.Node) and arg.op == "get_attr":
                        yield from walk(module.get_submodule(arg.target))
            yield node

    return walk(program.graph_module)


def first_output(node: fx.Node) -> str:
    """The name that the archive gives a node's first output; the node's own where it has none."""
    value = node.meta.get("val")
    if not isinstance(value, (tuple, list)) or not value:
        return node.name
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == 0:
            return user.name
    return f"{node.name}_unused_0"


def describe_leaves(program: ExportedProgram, calls: list[Call]) -> list[dict[str, Any]]:
    """Each function kept whole, with its calls as the user wrote them."""
    result: dict[str, dict[str, Any]] = {}
    for node in all_nodes(program):
        if CALL not in node.meta or not str(node.target).startswith("nnscaler_leaf."):
            continue
        call = calls[node.meta[CALL]]
        leaf = call.leaf
        entry = result.get(call.target)
        if entry is None:
            entry = result[call.target] = {
                "target": call.target,
                "signature": leaf.signature,
                "module": leaf.module,
                "qualname": leaf.qualname,
                "autograd_function": leaf.autograd_function,
            }
            if leaf.registered is not None:
                entry["name"] = leaf.registered.name
                if isinstance(leaf.registered.annotation, str):
                    entry["annotation"] = leaf.registered.annotation
            entry["arguments"] = {}
        name = first_output(node)
        entry["arguments"][name] = call.arguments
        if call.annotation is not None and "annotation" not in entry:
            entry.setdefault("annotations", {})[name] = call.annotation
    return list(result.values())


def describe_regions(program: ExportedProgram, regions: list[Region]) -> list[dict[str, Any]]:
    """The recompute regions with their nodes, enclosing ones first."""
    nodes: list[list[fx.Node]] = [[] for _ in regions]
    for node in all_nodes(program):
        if node.target is operator.getitem:
            continue
        for index in node.meta.get(REGIONS, ()):
            nodes[index].append(node)
    return [
        {
            "module": _common_module(members),
            "preserve_rng_state": region.preserve_rng_state,
            "nodes": [node.name for node in members],
        }
        for region, members in zip(regions, nodes, strict=True)
        if members
    ]


def _common_module(nodes: list[fx.Node]) -> str:
    stacks = [
        list(n.meta["nn_module_stack"].items()) for n in nodes if n.meta.get("nn_module_stack")
    ]
    common = stacks[0] if stacks else []
    for stack in stacks[1:]:
        same = 0
        while same < min(len(common), len(stack)) and common[same] == stack[same]:
            same += 1
        common = common[:same]
    return common[-1][1][0] if common else ""


def describe_symbols(program: ExportedProgram) -> dict[str, dict[str, Any]]:
    """Symbolic sizes of the graph: their ranges, and the inputs whose sizes they are."""
    if not program.range_constraints:
        return {}
    used = {str(s) for node in program.graph.nodes for s in free_symbols(node.meta.get("val"))}
    symbols: dict[str, dict[str, Any]] = {}
    for symbol, values in program.range_constraints.items():
        if str(symbol) in used:
            symbols[str(symbol)] = {
                "min": 0 if values.lower == -int_oo else int(values.lower),
                "max": None if values.upper == int_oo else int(values.upper),
            }
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        for dim, size in enumerate(value.shape):
            entry = symbols.get(str(size)) if isinstance(size, torch.SymInt) else None
            if entry is not None and "input" not in entry:
                entry.update(input=node.name, dim=dim)
    return symbols


def describe_anchors(program: ExportedProgram, anchors: list[str]) -> list[dict[str, str]]:
    """The anchors, each with the node that comes before it ("" at the start)."""
    before = {i: n.name for n in all_nodes(program) for i in n.meta.get(ANCHORS, ())}
    return [{"name": name, "after": before.get(i, "")} for i, name in enumerate(anchors)]
