"""Models on the meta device, which no machine holds."""

import json

import torch
from exported import Exported
from torch import nn

import nnscaler
import user_cases
import zoo


def test_model_and_arguments_on_meta(tmp_path):
    with torch.device("meta"):
        module, args, kwargs = zoo.gpt()
    exported = Exported(tmp_path, module, args, kwargs)
    assert all(p.is_meta and type(p) is nn.Parameter for p in module.parameters())
    on_cpu = Exported(tmp_path, *zoo.gpt())
    assert exported.graph["nodes"] == on_cpu.graph["nodes"]
    assert exported.graph["tensor_values"] == on_cpu.graph["tensor_values"]
    assert exported.extra == on_cpu.extra


def test_made_under_meta(tmp_path):
    def make():
        return zoo.llama(tied=True)

    nnscaler.export(make, path=tmp_path / "meta.pt2", meta=True)
    exported = Exported(tmp_path, make, meta=True)
    assert (tmp_path / "meta.pt2").read_bytes() == exported.path.read_bytes()
    assert exported.extra["ties"] == [["model.embed_tokens.weight", "lm_head.weight"]]
    # Tables that are not in the state dict have no values, and it says so.
    assert exported.extra["buffers"]["model.rotary_emb.inv_freq"] == {
        "persistent": False,
        "has_value": False,
    }
    config = json.loads(exported.files["data/constants/model_constants_config.json"])["config"]
    meta = config["model.rotary_emb.inv_freq"]["tensor_meta"]
    assert meta["device"]["type"] == "meta"
    torch.export.load(exported.path)


def test_function_without_meta(tmp_path):
    exported = Exported(tmp_path, zoo.mlp)
    assert exported.targets() == ["linear", "gelu", "linear", "square", "mean"]


def test_literals_meet_meta_parameters(tmp_path):
    with torch.device("meta"):
        module, _, _ = user_cases.literal()
    exported = Exported(tmp_path, module, (torch.randn(4, 8),))
    (literal,) = torch.export.load(exported.path).constants.values()
    assert literal.tolist() == [0.5, 2.0]


def test_some_on_meta(tmp_path):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"), nn.BatchNorm1d(4))
    exported = Exported(tmp_path, module, (torch.randn(2, 4),))
    assert exported.extra["buffers"]["2.running_mean"] == {"persistent": True}
    assert [p.device.type for p in module.parameters()] == ["cpu"] * 2 + ["meta"] * 2 + ["cpu"] * 2
    state = torch.export.load(exported.path).state_dict
    assert state["2.running_var"].tolist() == [1.0] * 4


def test_dtype_and_flags_of_meta_parameters(tmp_path):
    module = nn.Linear(4, 4, device="meta", dtype=torch.bfloat16)
    module.bias.requires_grad_(False)
    exported = Exported(tmp_path, module, (torch.ones(2, 4, dtype=torch.bfloat16),))
    assert exported.extra["parameters"]["bias"] == {"requires_grad": False}
    assert not exported.requires_grad("p_bias") and exported.requires_grad("p_weight")
    assert exported.graph["tensor_values"]["linear"]["dtype"] == 13
