"""What a forward takes and returns."""

from dataclasses import dataclass

import pytest
import torch
from exported import Exported
from torch import nn
from torch.utils import _pytree as pytree

import nnscaler
import user_cases
import zoo


def leaf(i: int) -> dict:
    return {"leaf": i}


def parameter(name: str, tree=None, kind: str = "positional", default: str | None = None) -> dict:
    entry = {"name": name, "kind": kind}
    if default is not None:
        entry["default"] = default
    if tree is not None:
        entry["tree"] = tree
    return entry


@pytest.mark.parametrize(
    "kind, expected",
    [
        (
            "dataclass",
            {
                "object": "user_cases.Out",
                "fields": [["loss", leaf(0)], ["n", leaf(1)], ["extra", {"literal": "None"}]],
            },
        ),
        ("dict", {"dict": [["'loss'", leaf(0)], ["'n'", leaf(1)]]}),
        ("namedtuple", {"tuple": [leaf(0), leaf(1)], "type": "user_cases.Pair"}),
        (
            "nesting",
            {
                "list": [
                    leaf(0),
                    {"tuple": [leaf(1), {"literal": "None"}, {"literal": "3"}]},
                    {"dict": [["'name'", {"literal": "'head'"}]]},
                ]
            },
        ),
    ],
)
def test_results(kind, expected, tmp_path):
    exported = Exported(tmp_path, *user_cases.head(kind))
    assert exported.extra["forward"] == {
        "parameters": [
            parameter("b", {"dict": [["'x'", leaf(0)], ["'mask'", leaf(1)]]}),
        ],
        "output": expected,
    }
    # The classes are known to the tracer only while it runs.
    assert user_cases.Out not in pytree.SUPPORTED_NODES
    assert user_cases.Pair not in pytree.SUPPORTED_NODES


def test_torch_reads_a_dataclass_once_it_is_registered(tmp_path):
    module, args, _ = user_cases.head()
    exported = Exported(tmp_path, module, args)
    torch.export.register_dataclass(user_cases.Out, serialized_type_name="user_cases.Out")
    try:
        actual, expected = exported.run(module, *args), module(*args)
        assert type(actual) is user_cases.Out
        assert torch.equal(actual.loss, expected.loss)
        # Registered by the user, it stays so.
        Exported(tmp_path, module, args)
        assert user_cases.Out in pytree.SUPPORTED_NODES
    finally:
        pytree._deregister_pytree_node(user_cases.Out)


def test_model_output(tmp_path):
    assert Exported(tmp_path, *zoo.llama(layers=1)).extra["forward"]["output"] == {
        "object": "transformers.modeling_outputs.CausalLMOutputWithPast",
        "fields": [["loss", leaf(0)], ["logits", leaf(1)]],
    }


@dataclass
class Batch:
    x: torch.Tensor
    y: tuple[torch.Tensor, ...]
    weight: float = 1.0
    mask: torch.Tensor | None = None


class Everything(nn.Module):
    """Each kind of parameter."""

    def forward(self, batch, scale=2, *rest, offset, dtype=torch.float32, unused=None, **more):
        total = (batch.x * batch.weight + sum(batch.y)) * scale + offset
        return total.to(dtype) + sum(rest) + more["bias"] + len(more["names"])


def test_every_kind_of_parameter(tmp_path):
    x = torch.randn(2, 3)
    batch = Batch(x, (x + 1, x + 2), 0.5)
    args = (batch, 3, x * 2, x * 3)
    kwargs = {"bias": x + 9, "offset": x - 1, "unused": torch.ones(2), "names": ["a", "b"]}
    exported = Exported(tmp_path, Everything(), args, kwargs)
    assert exported.extra["forward"]["parameters"] == [
        parameter(
            "batch",
            {
                "object": "test_export_structures.Batch",
                "fields": [
                    ["x", leaf(0)],
                    ["y", {"tuple": [leaf(1), leaf(2)]}],
                    ["weight", {"literal": "0.5"}],
                    ["mask", {"literal": "None"}],
                ],
            },
        ),
        parameter("scale", {"literal": "3"}, default="2"),
        parameter("rest", {"tuple": [leaf(5), leaf(6)]}, kind="var_positional"),
        parameter("offset", leaf(7), kind="keyword"),
        parameter("dtype", kind="keyword", default="torch.float32"),
        parameter("unused", leaf(8), kind="keyword", default="None"),
        parameter(
            "more",
            {
                "dict": [
                    ["'bias'", leaf(9)],
                    ["'names'", {"list": [{"literal": "'a'"}, {"literal": "'b'"}]}],
                ]
            },
            kind="var_keyword",
        ),
    ]
    # Leaves count the archive's own inputs, constants among them.
    inputs = [e["arg"] for e in _user_inputs(exported)]
    assert [i for i, arg in enumerate(inputs) if "as_tensor" in arg] == [0, 1, 2, 5, 6, 7, 8, 9]


def _user_inputs(exported: Exported) -> list[dict]:
    import json

    signature = json.loads(exported.files["models/model.json"])["graph_module"]["signature"]
    kinds = ("user_input", "constant_input")
    return [
        spec.get("user_input") or {"arg": spec["constant_input"]["value"]}
        for spec in signature["input_specs"]
        if any(kind in spec for kind in kinds)
    ]


class Add(nn.Module):
    def forward(self, x, y):
        return x * 2 + y


def test_inputs_that_share_a_tensor_stay_two(tmp_path):
    x = torch.randn(4, 8)
    for args in ((x, x), (x[:2], x[2:]), (x, x.view(4, 8))):
        exported = Exported(tmp_path, Add(), args)
        (node,) = [n for n in exported.nodes if n["target"].endswith("add.Tensor")]
        assert [e["arg"]["as_tensor"]["name"] for e in node["inputs"]] == ["mul", "y"]


def test_input_that_is_a_parameter(tmp_path):
    module, _, _ = zoo.two_linears(dim=8, hidden=8)
    exported = Exported(tmp_path, module, (module.fc1.weight,))
    assert exported.node("linear")["inputs"][0]["arg"] == {"as_tensor": {"name": "x"}}


def test_inputs_keep_requires_grad(tmp_path):
    x = torch.randn(4, 8, requires_grad=True)
    exported = Exported(tmp_path, Add(), (x * 2, torch.randn(4, 8)))
    assert exported.requires_grad("x") and not exported.requires_grad("y")


def test_keywords_in_any_order(tmp_path):
    x = torch.randn(4, 8)
    exported = Exported(tmp_path, Add(), (), {"y": x, "x": x + 1})
    assert exported.extra["forward"]["parameters"] == [
        parameter("x", leaf(0)),
        parameter("y", leaf(1)),
    ]
    assert exported.graph["inputs"][0] == {"as_tensor": {"name": "x"}}


# --- Dynamic sizes ---


def test_dynamic_shapes(tmp_path):
    module, args, _ = user_cases.reshaped()
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = Exported(tmp_path, module, args, dynamic_shapes={"x": {0: batch}})
    ((name, symbol),) = exported.extra["symbols"].items()
    assert symbol == {"min": 2, "max": 64, "input": "x", "dim": 0}
    assert f"Symbol('{name}'" in str(exported.graph["tensor_values"]["x"]["sizes"][0])
    x = torch.randn(6, 8)
    assert torch.equal(exported.run(module, x), module(x))


def test_marked_dynamic(tmp_path):
    module, (x,), _ = user_cases.reshaped()
    nnscaler.mark_dynamic(x, 0)
    exported = Exported(tmp_path, module, (x,))
    (symbol,) = exported.extra["symbols"].values()
    assert symbol == {"min": 2, "max": None, "input": "x", "dim": 0}
    assert Exported(tmp_path, module, (x.clone(),)).extra["symbols"] == {}
