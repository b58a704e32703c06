"""Policies: who decides how each operator is split, and the words to write one's own.

A policy is a function `policy(graph, cfg)` that yields an `OpPlan` for the operators it cares about. What it leaves
open is replicated; redistributions between differing layouts are put in by the core.
"""

from __future__ import annotations

import ast
import importlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nnscaler.errors import InputError, UnsupportedError

__all__ = [
    "OpPartition",
    "OpPlan",
    "get_called_self_module_name",
    "get_layer_index",
    "get_pas_ops",
]


@dataclass(frozen=True)
class OpPartition:
    """Split an operator along dimension `dim` of its input number `input`.

    Attributes:
        input: Place of the argument in the operator's annotation, from 0.
        dim: Dimension of that argument, from 0.
    """

    input: int
    dim: int


@dataclass
class OpPlan:
    """What a policy decides about one operator.

    Attributes:
        op: The operator, from `get_pas_ops`.
        recompute_id: Operators with the same non-negative number are recomputed together in backward.
        stage_id: Pipeline stage; -1 is that of the operator before.
        partition: An `OpPartition`, `None` to replicate, or `'auto'` to let the planner choose.
        partitions: At most one entry; another way to write `partition`.
    """

    op: Operator
    recompute_id: int = -1
    stage_id: int = -1
    hook_meta: Any = None
    pre_hook: Callable | None = None
    post_hook: Callable | None = None
    partition: OpPartition | str | None = None
    partitions: list[OpPartition | str] = field(default_factory=list)

    def __post_init__(self):
        if self.partition is not None and self.partitions:
            raise InputError("OpPlan: partition and partitions are both given; give one of them")
        if len(self.partitions) > 1:
            raise UnsupportedError("OpPlan: an operator can be split along one dimension only")
        if self.partitions:
            self.partition = self.partitions[0]
            self.partitions = []
        if not (
            self.partition is None
            or self.partition == "auto"
            or isinstance(self.partition, OpPartition)
        ):
            raise InputError(
                f"OpPlan: partition is {self.partition!r}; give an OpPartition, None or 'auto'"
            )


class Tensor:
    """A tensor of the graph, as policies see it."""

    def __init__(self, facts: dict):
        self._facts = facts
        self.name: str = facts.get("fqn", facts["name"])
        self.shape: tuple[int, ...] = tuple(facts.get("shape", ()))
        self.dtype: str = facts.get("dtype", "")
        self.requires_grad: bool = facts.get("requires_grad", False)
        self.dynamic_dims: set[int] = set(facts.get("dynamic", ()))

    @property
    def parent(self) -> Tensor:
        return self

    def is_param(self) -> bool:
        return self._facts["kind"] == "parameter"

    def is_buffer(self) -> bool:
        return self._facts["kind"] == "buffer"

    def is_attr(self) -> bool:
        return self.is_param() or self.is_buffer()

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)}"


class Operator:
    """An operator of the graph, as policies see it.

    Attributes:
        name: Name of its first output in the archive.
        signature: Full name of the function called, such as `torch.nn.functional.linear`.
        fqn: Qualified name of the innermost module, `''` for the root.
        module_stack: Qualified name -> class name of the modules it was called in, outermost first.
        call_expr: Source of the call in the user's code, such as `self.fc1(x)`.
        comment: File, line and text of that call.
        anno: Its annotation with the names bound to shapes.
        cid: Its number in the graph.
    """

    def __init__(self, facts: dict):
        self._facts = facts
        self.cid: int = facts["op"]
        self.name: str = facts["name"]
        self.signature: str = facts["signature"]
        self.fqn: str = facts["module"]
        self.module_stack: dict[str, str] = {path: cls for path, cls in facts["stack"]}
        self.anno: str = facts["annotation"]
        self.kwargs: dict[str, Any] = facts["kwargs"]
        self.comment = (
            f"{facts['file']}:{facts['line']}: {facts['text']}" if "file" in facts else ""
        )
        self._inputs = [Tensor(x) for x in facts["inputs"] if x]
        self._outputs = [Tensor(x) for x in facts["outputs"] if x]

    @property
    def fn(self) -> Callable | None:
        """The function object that `signature` names, or None."""
        module, _, name = self.signature.rpartition(".")
        while module:
            try:
                target: Any = importlib.import_module(module)
                for part in name.split("."):
                    target = getattr(target, part)
                return target
            except (ImportError, AttributeError):
                module, _, head = module.rpartition(".")
                name = f"{head}.{name}"
        return None

    @property
    def module_class_chain(self) -> list[type]:
        """Classes of `module_stack`, outermost first, the root included."""
        return [c for c in (_load_class(name) for name in self.module_stack.values()) if c]

    def get_module_fqn(self, cls: type, *, include_subclass: bool = False) -> str:
        """Qualified name of the outermost module of class `cls` around this operator, or `''`."""
        for path, name in self.module_stack.items():
            found = _load_class(name)
            if found is cls or (include_subclass and found and issubclass(found, cls)):
                return path
        return ""

    @property
    def call_expr(self) -> str:
        text = self._facts.get("text", "").strip()
        try:
            statement = ast.parse(text).body[0]
        except (SyntaxError, IndexError):
            return text
        value = getattr(statement, "value", None)
        return ast.get_source_segment(text, value) if value is not None else text

    def inputs(self) -> list[Tensor]:
        return list(self._inputs)

    def outputs(self) -> list[Tensor]:
        return list(self._outputs)

    def input(self, index: int) -> Tensor:
        return self._inputs[index]

    def output(self, index: int) -> Tensor:
        return self._outputs[index]

    def name_at(self, partition: OpPartition) -> str:
        """Name of the annotation at a place, checked to be splittable.

        Raises:
            InputError: there is no such input or dimension, or it may not be split; the message names the operator,
                its annotation and the choices.
        """
        places = self._facts["user_inputs"]
        if not 0 <= partition.input < len(places):
            self._refuse(partition, f"it has inputs 0 to {len(places) - 1}")
        dims = places[partition.input]
        if not 0 <= partition.dim < len(dims):
            self._refuse(
                partition, f"its input {partition.input} has dimensions 0 to {len(dims) - 1}"
            )
        names = [self._facts["names"][i] for i in dims[partition.dim]]
        for name in names:
            if name["splittable"]:
                return name["name"]
        self._refuse(
            partition, names[0]["why_not"] if names else "that dimension has a fixed length"
        )
        raise AssertionError

    def partitions(self) -> list[OpPartition]:
        """One place for each splittable name, in the order of the annotation."""
        seen, result = set(), []
        for i, dims in enumerate(self._facts["user_inputs"]):
            for d, names in enumerate(dims):
                for index in names:
                    name = self._facts["names"][index]
                    if name["splittable"]:
                        if name["name"] not in seen:
                            seen.add(name["name"])
                            result.append(OpPartition(i, d))
                        break
        return result

    def extent(self, partition: OpPartition) -> int:
        name = self.name_at(partition)
        return next(x["extent"] for x in self._facts["names"] if x["name"] == name)

    def _refuse(self, partition: OpPartition, why: str) -> None:
        choices = [f"{p.input},{p.dim} ({self.name_at(p)})" for p in self.partitions()]
        raise InputError(
            f"{self}: cannot be split at input {partition.input}, dimension {partition.dim}: {why}; its annotation is "
            f'"{self.anno}" and it may be split at {", ".join(choices) or "no place"}'
        )

    def __repr__(self) -> str:
        where = f" of {self.fqn}" if self.fqn else ""
        place = ""
        if "file" in self._facts:
            place = f" ({self._facts['file'].rsplit('/', 1)[-1]}:{self._facts['line']})"
        return f"{self.signature}{where}{place}"


class Graph:
    """The model's operators, for policies."""

    def __init__(self, text: str):
        self._facts = json.loads(text)
        self._nodes = [Operator(x) for x in self._facts["operators"]]

    def nodes(self) -> list[Operator]:
        return list(self._nodes)

    def select(self, name: str | None = None, ntype: type | None = None) -> list[Operator]:
        return [
            n
            for n in self._nodes
            if (name is None or n.name == name) and (ntype is None or isinstance(n, ntype))
        ]


def get_pas_ops(graph: Graph) -> list[Operator]:
    """All forward operators in graph order."""
    return graph.nodes()


def get_layer_index(fqn: str) -> int:
    """The only component of a qualified name that is a number.

    Raises:
        InputError: there is none, or there are several.
    """
    numbers = [int(x) for x in fqn.split(".") if x.isdigit()]
    if len(numbers) != 1:
        raise InputError(
            f"{fqn!r} has {len(numbers)} numbers among its components; one is expected"
        )
    return numbers[0]


def get_called_self_module_name(call_expr: str) -> str:
    """`fc1` for an outermost call `self.fc1(...)`, else `''`."""
    try:
        call = ast.parse(call_expr.strip(), mode="eval").body
    except SyntaxError:
        return ""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    owner = call.func.value
    return call.func.attr if isinstance(owner, ast.Name) and owner.id == "self" else ""


def pas_dp(graph: Graph, cfg) -> Iterator[OpPlan]:
    """Everything on one device; copies across scale units."""
    if cfg.plan_ngpus != 1:
        raise InputError(f"policy dp: plan_ngpus is {cfg.plan_ngpus}; it must be 1")
    return iter(())


def pas_tp(graph: Graph, cfg) -> Iterator[OpPlan]:
    """A random splittable dimension for each operator; a test aid, as in nnScaler."""
    draw = random.Random(cfg.pas_config.get("seed", 1))
    sometimes_whole = cfg.pas_config.get("enable_random_replicated", False)
    for op in get_pas_ops(graph):
        places = [p for p in op.partitions() if op.extent(p) % cfg.plan_ngpus == 0]
        if op._facts["pinned"] or op._facts["constant"] or not places:
            continue
        if sometimes_whole and draw.random() < 0.5:
            continue
        yield OpPlan(op, partition=draw.choice(places))


def pas_data(graph: Graph, cfg) -> Iterator[OpPlan]:
    """The first dimension of each operator's first input, where it can be split evenly."""
    for op in get_pas_ops(graph):
        if op._facts["pinned"] or op._facts["constant"]:
            continue
        for place in op.partitions():
            if place == OpPartition(0, 0) and op.extent(place) % cfg.plan_ngpus == 0:
                yield OpPlan(op, partition=place)


def _needs_pipeline(graph: Graph, cfg):
    raise UnsupportedError(
        "policies pp, hybrid and fsdp need pipelines and sharded optimizers, which this version does not run; use "
        "autodist, tp, data, dp, or a function of yours"
    )


pas_pp = pas_hybrid = pas_fsdp = _needs_pipeline

BUILT_IN: dict[str, Callable] = {
    "dp": pas_dp,
    "tp": pas_tp,
    "data": pas_data,
    "pp": pas_pp,
    "hybrid": pas_hybrid,
    "fsdp": pas_fsdp,
}


def partitions_of(policy: Callable, graph: Graph, cfg) -> dict[int, list[str]]:
    """Applies a policy: operator number -> partition, one text a mesh axis (a policy knows one axis).

    Raises:
        InputError: the policy yields something else, an operator twice or of another graph, or a partition that the
            operator does not allow.
    """
    plans = policy(graph, cfg)
    name = getattr(policy, "__name__", repr(policy))
    if not isinstance(plans, Iterable):
        raise InputError(
            f"policy {name}: returned {type(plans).__name__}; it must yield OpPlan objects"
        )
    result: dict[int, list[str]] = {}
    nodes = graph.nodes()
    for plan in plans:
        if not isinstance(plan, OpPlan):
            raise InputError(f"policy {name}: yielded {plan!r}; it must yield OpPlan objects")
        op = plan.op
        if not (op.cid < len(nodes) and nodes[op.cid] is op):
            raise InputError(f"policy {name}: {op} is not an operator of this graph")
        if op.cid in result:
            raise InputError(f"policy {name}: {op} has two plans")
        if plan.stage_id > 0:
            raise UnsupportedError(f"policy {name}: pipeline stages cannot run in this version")
        if plan.recompute_id >= 0:
            raise UnsupportedError(
                f"policy {name}: recompute_id cannot run in this version; use recompute_modules or "
                "torch.utils.checkpoint"
            )
        if plan.pre_hook or plan.post_hook:
            raise UnsupportedError(f"policy {name}: operator hooks cannot run in this version")
        if plan.partition == "auto":
            result[op.cid] = ["auto"]
        elif plan.partition is None:
            result[op.cid] = ["replicate"]
        else:
            annotated = op.name_at(plan.partition)
            extent = op.extent(plan.partition)
            if extent % cfg.plan_ngpus:
                raise InputError(
                    f"policy {name}: {op}: dimension {plan.partition.dim} of input {plan.partition.input} "
                    f"({annotated}) has length {extent}, which {cfg.plan_ngpus} devices do not share evenly; its "
                    f'annotation is "{op.anno}"'
                )
            result[op.cid] = [annotated]
    return result


def _load_class(name: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None) if module else None
    except ImportError:
        return None
