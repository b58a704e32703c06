"""Regions of torch.utils.checkpoint become recompute requests."""

import pytest
import torch
from exported import Exported
from torch.utils import checkpoint as checkpoint_module

import user_cases
import zoo


def _block(i: int) -> list[str]:
    names = [("linear", 2 * i), ("gelu", i), ("linear", 2 * i + 1), ("dropout", i), ("add", i)]
    return [f"{name}_{n}" if n else name for name, n in names]


@pytest.mark.parametrize("how", ["plain", "reentrant"])
def test_region_each(how, tmp_path):
    module, args, _ = user_cases.checkpointed(how)
    exported = Exported(tmp_path, module, args)
    assert exported.extra["recompute"] == [
        {"module": f"b.{i}", "preserve_rng_state": True, "nodes": _block(i)} for i in range(3)
    ]
    assert all(exported.requires_grad(name) for name in _block(2))
    assert torch.equal(exported.run(module, *args), module(*args))


def test_sequential(tmp_path):
    exported = Exported(tmp_path, *user_cases.checkpointed("sequential"))
    # Two segments of three modules: the last is never checkpointed.
    (region,) = exported.extra["recompute"]
    assert region["module"] == "b.0"
    assert region["nodes"] == _block(0)


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        x = checkpoint_module.checkpoint(
            self.outer, x, preserve_rng_state=False, use_reentrant=False, scale=2.0
        )
        return x.sum()

    def outer(self, x, scale):
        x = checkpoint_module.checkpoint(self.inner, x.relu(), use_reentrant=False)
        with torch.no_grad():
            y = x.sin()
        return (x + y) * scale


def test_nested_with_keywords_and_no_grad(tmp_path):
    exported = Exported(tmp_path, Nested(), (torch.randn(2, 4),))
    outer, inner = exported.extra["recompute"]
    assert outer == {
        "module": "",
        "preserve_rng_state": False,
        "nodes": ["relu", "linear", "sin", "add", "mul"],
    }
    assert inner == {"module": "inner", "preserve_rng_state": True, "nodes": ["linear"]}


def test_transformers_gradient_checkpointing(tmp_path):
    module, args, kwargs = zoo.llama()
    module.gradient_checkpointing_enable()
    exported = Exported(tmp_path, module, args, kwargs)
    assert [r["module"] for r in exported.extra["recompute"]] == [
        "model.layers.0",
        "model.layers.1",
    ]
    linear = [n for n in exported.extra["recompute"][0]["nodes"] if n.startswith("linear")]
    assert len(linear) == 7
    assert exported.extra["eval"] == {"mode": "same", "training_only": []}
    module.gradient_checkpointing_disable()
    assert torch.equal(exported.run(module, *args, **kwargs).loss, module(*args, **kwargs).loss)


class Selective(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = torch.nn.Linear(4, 4)

    def forward(self, x):
        def contexts():
            return checkpoint_module.create_selective_checkpoint_contexts(
                [torch.ops.aten.mm.default]
            )

        return checkpoint_module.checkpoint(self.l, x, use_reentrant=False, context_fn=contexts)


def test_selective_checkpointing_recomputes_all(tmp_path):
    with pytest.warns(UserWarning, match="context_fn is left out: the whole region"):
        exported = Exported(tmp_path, Selective(), (torch.randn(2, 4),))
    assert exported.extra["recompute"][0]["nodes"] == ["linear"]
