"""What is in an archive, for the models that every stage carries."""

import json

import pytest
import torch
from exported import Exported

import user_cases
import zoo
from nnscaler.errors import InputError

_HAS_LEAVES = ("retnet",)


def _tensors(output):
    return [t for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("name", zoo.MODELS)
def test_model(name, tmp_path):
    module, args, kwargs = zoo.MODELS[name](dtype=torch.float64)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    expected = module(*args, **kwargs)
    exported = Exported(tmp_path, module, args, kwargs)

    assert exported.extra["format"] == 1
    assert exported.extra["training"] is True
    assert exported.extra["torch"] == torch.__version__
    cls = type(module)
    assert exported.extra["module_class"] == f"{cls.__module__}.{cls.__qualname__}"
    assert exported.extra["parameters"] == {
        name: {"requires_grad": True} for name, _ in module.named_parameters(remove_duplicate=False)
    }
    assert exported.extra["eval"]["mode"] in ("same", "flags")
    loss = exported.graph["outputs"][0]["as_tensor"]["name"]
    assert exported.requires_grad(loss)

    # The weights are not in it, and the module still has its own.
    weights = json.loads(exported.files["data/weights/model_weights_config.json"])["config"]
    for key, _ in module.named_parameters():
        assert weights[key]["tensor_meta"]["device"]["type"] == "meta", key
    assert exported.files["data/weights/weight_0"] == b""
    assert exported.files["data/sample_inputs/model.pt"] == b""
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())

    if name not in _HAS_LEAVES:
        actual = exported.run(module, *args, **kwargs)
        assert type(actual) is type(expected)
        for a, e in zip(_tensors(actual), _tensors(expected), strict=True):
            assert torch.equal(a, e)


def test_fused_layer_norm_of_the_retnet(tmp_path):
    (entry,) = Exported(tmp_path, *zoo.retnet()).extra["leaves"]
    name = "apex.normalization.fused_layer_norm.FusedLayerNormAffineFunction.apply"
    assert entry["signature"] == name
    assert len(entry["arguments"]) == 5
    first = entry["arguments"][next(iter(entry["arguments"]))]
    assert [a["name"] for a in first] == ["input", "weight", "bias", "normalized_shape", "eps"]
    assert first[3] == {"name": "normalized_shape", "keyword": False, "literal": "(32,)"}


def test_same_bytes(tmp_path):
    archives = []
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        archives.append(Exported(tmp_path / directory, *zoo.retnet()).path.read_bytes())
    assert archives[0] == archives[1]


def test_gradients_flow_where_they_do(tmp_path):
    exported = Exported(tmp_path, *user_cases.autocast())
    values = exported.graph["tensor_values"]
    assert values["linear_1"]["requires_grad"]
    (outer,) = [n for n in exported.nodes if "wrap_with_set_grad" in n["target"]]
    assert not values[outer["outputs"][0]["as_tensor"]["name"]]["requires_grad"]
    (body,) = [n for n in exported.nodes if "wrap_with_autocast" in n["target"]]
    assert values[body["outputs"][0]["as_tensor"]["name"]]["requires_grad"]


def test_regions_of_autocast_and_no_grad_survive(tmp_path):
    module, args, _ = user_cases.autocast()
    exported = Exported(tmp_path, module, args)
    targets = [t for t in exported.targets() if t != "_assert_tensor_metadata"]
    assert targets == [
        *("linear", "higher_order", "to", "abs", "amax", "higher_order"),
        *("to", "linear", "div", "sum"),
    ]
    assert torch.equal(exported.run(module, *args), module(*args))


def test_traces_name_the_users_lines(tmp_path):
    exported = Exported(tmp_path, *zoo.mlp())
    lines = exported.node("linear")["metadata"]["stack_trace"].splitlines()
    assert lines[0].startswith(f'File "{zoo.__file__}", line ')
    assert lines[1].strip() == "return self.fc2(F.gelu(self.fc1(x))).square().mean()"
    assert len(lines) == 2  # none of torch's
    assert exported.node("linear")["metadata"]["nn_module_stack"] == (
        "L__self__,,zoo.MLP;L__self__fc1,fc1,torch.nn.modules.linear.Linear"
    )


def test_ties(tmp_path):
    assert Exported(tmp_path, *user_cases.tied()).extra["ties"] == [["emb.weight", "head.weight"]]
    llama = Exported(tmp_path, *zoo.llama(tied=True)).extra["ties"]
    assert llama == [["model.embed_tokens.weight", "lm_head.weight"]]
    assert Exported(tmp_path, *zoo.gpt()).extra["ties"] == []


def test_shared_module_is_a_tie(tmp_path):
    module = torch.nn.Sequential(linear := torch.nn.Linear(4, 4), torch.nn.ReLU(), linear)
    exported = Exported(tmp_path, module, (torch.randn(2, 4),))
    assert exported.extra["ties"] == [["0.weight", "2.weight"], ["0.bias", "2.bias"]]


def test_buffers_and_literals_keep_their_values(tmp_path):
    module, args, _ = user_cases.rope()
    exported = Exported(tmp_path, module, args)
    assert exported.extra["buffers"] == {
        "cos": {"persistent": False},
        "steps": {"persistent": True},
    }
    program = torch.export.load(exported.path)
    assert torch.equal(program.constants["cos"], module.cos)
    assert torch.equal(program.state_dict["steps"], torch.tensor(0))
    assert torch.equal(module.steps, torch.tensor(0))  # exporting is no call

    module, args, _ = user_cases.literal()
    exported = Exported(tmp_path, module, args)
    assert exported.extra["buffers"] == {}
    assert torch.equal(exported.run(module, *args), module(*args))


def test_frozen_parameters(tmp_path):
    module, args, _ = zoo.mlp()
    module.fc1.requires_grad_(False)
    exported = Exported(tmp_path, module, args)
    assert exported.extra["parameters"]["fc1.weight"] == {"requires_grad": False}
    assert not exported.requires_grad("linear")
    assert exported.requires_grad("linear_1")


def test_grad_mode_around_export_does_not_matter(tmp_path):
    module, args, _ = user_cases.autocast()
    with torch.no_grad():
        inside = Exported(tmp_path, module, args)
    assert inside.requires_grad("linear_1")
    assert inside.targets() == Exported(tmp_path, module, args).targets()


def test_anchors(tmp_path):
    exported = Exported(tmp_path, Anchored(), (torch.randn(2, 4),))
    assert exported.extra["anchors"] == [
        {"name": "start", "after": ""},
        {"name": "middle", "after": "relu"},
    ]


class Anchored(torch.nn.Module):
    def forward(self, x):
        import nnscaler

        nnscaler.anchor("start")
        x = x.relu()
        nnscaler.anchor("middle")
        return x.sin()


def test_nothing_is_left_half_written(tmp_path, monkeypatch):
    path = tmp_path / "model.pt2"
    path.write_text("before")
    with pytest.raises(InputError):
        Exported(tmp_path, *user_cases.gate())
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt2"]


def test_directory_must_exist(tmp_path):
    with pytest.raises(InputError) as error:
        Exported(tmp_path / "none", *zoo.mlp())
    path = tmp_path / "none" / "model.pt2"
    assert str(error.value) == f"{path}: there is no directory {path.parent}; make it first"
