"""How the evaluation graph relates to the training graph."""

import pytest
import torch
import torch.nn.functional as F
from exported import Exported
from torch import nn

import user_cases
import zoo
from nnscaler.export import program


def mode(tmp_path, module, *args, **kwargs) -> dict:
    return Exported(tmp_path, module, args, kwargs).extra["eval"]


def flags(*training_only: str) -> dict:
    return {"mode": "flags", "training_only": list(training_only)}


SAME = {"mode": "same", "training_only": []}
X = torch.randn(4, 8)


@pytest.fixture
def traces(monkeypatch):
    """Counts the traces that an export takes."""
    count = []
    trace = program._trace
    monkeypatch.setattr(program, "_trace", lambda *a: count.append(1) or trace(*a))
    return count


class Uses(nn.Module):
    """Does what a function says, which takes (self, x)."""

    def __init__(self, do) -> None:
        super().__init__()
        self.p = 0.1
        self.none = 0.0
        self.l = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.do = do

    def forward(self, x):
        return self.do(self, self.l(x))


# Each is known from its source, without a second trace.
def functional_dropout(s, x):
    return F.dropout(x, 0.1, s.training) + F.dropout(x, p=0.1, training=s.training)


def no_dropout(s, x):
    return x * (s.none if s.training else 0.0) + (0.0 if not s.training else s.none)


def attention(s, x):
    x = x.view(1, 1, 4, 8)
    return F.scaled_dot_product_attention(x, x, x, dropout_p=s.none if s.training else 0)


@pytest.mark.parametrize(
    "do, expected",
    [(functional_dropout, flags()), (no_dropout, SAME), (attention, SAME)],
)
def test_known_from_the_source(do, expected, tmp_path, traces):
    assert mode(tmp_path, Uses(do), X) == expected
    assert len(traces) == 1


def test_modules_known_from_their_source(tmp_path, traces):
    module, args, _ = user_cases.drop()
    assert mode(tmp_path, module, *args) == flags("add_")
    assert mode(tmp_path, zoo.mlp()[0], torch.randn(8, 16)) == SAME
    gpt, args, _ = zoo.gpt(dropout=0.1)
    assert mode(tmp_path, gpt, *args) == flags()
    assert len(traces) == 3


# Each needs a second trace.
def dropout_by_value(s, x):
    x = x.view(1, 1, 4, 8)
    p = s.p if s.training else 0.0
    return F.scaled_dot_product_attention(x, x, x, dropout_p=p).flatten(2)


def dropout_by_value_and_flag(s, x):
    p = s.p if s.training else 0.0
    return F.dropout(x, p, training=s.training)


def counted(s, x):
    if s.training:
        s.count += 1
        with torch.no_grad():
            s.count.mul_(x.detach().mean() * 0 + 1)
    return x


def dropped_in_training(s, x):
    p = s.p if s.training else 0.0
    if p > 0:
        x = F.dropout(x, p)
    return x.contiguous().sin()


def recomputed(s, x):
    if s.training:
        return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
    return torch.sin(x)


@pytest.mark.parametrize(
    "do, expected",
    [
        (dropout_by_value, flags()),
        (dropout_by_value_and_flag, flags()),
        (counted, flags("add_", "detach", "mean", "mul", "add", "mul_")),
        (recomputed, SAME),
        (dropped_in_training, flags()),
    ],
)
def test_second_trace_agrees(do, expected, tmp_path, traces):
    actual = mode(tmp_path, Uses(do), X)
    if do is counted:
        assert actual["mode"] == "flags"
        assert actual["training_only"][0] == "add_"
        assert "linear" not in actual["training_only"]
    else:
        assert actual == expected
    assert len(traces) == 2


def scaled_in_training(s, x):
    if s.training:
        x = x * 2
    return x.sum()


def more_in_evaluation(s, x):
    return x if s.training else x.softmax(-1)


def other_constant(s, x):
    return x * torch.tensor([1.0 if s.training else 2.0])


def other_result(s, x):
    return {"loss": x} if s.training else x


def other_number(s, x):
    return x * (2 if s.training else 1)


@pytest.mark.parametrize(
    "do, what",
    [
        (scaled_in_training, "if s.training:"),
        (more_in_evaluation, "return x if s.training else x.softmax(-1)"),
        (other_constant, "return x * torch.tensor([1.0 if s.training else 2.0])"),
        (other_result, 'return {"loss": x} if s.training else x'),
        (other_number, "return x * (2 if s.training else 1)"),
    ],
)
def test_differs(do, what, tmp_path, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    actual = mode(tmp_path, Uses(do), X)
    line = do.__code__.co_firstlineno + 1
    where = f"tests/export/test_export_modes.py:{line}"
    assert actual["mode"] == "differs"
    assert actual["reason"].startswith(
        f'{where}: "{what}" makes other operators in training than in evaluation'
    )


def test_evaluation_that_cannot_be_exported(tmp_path, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)

    def do(s, x):
        return x if s.training else x.detach().numpy()

    actual = mode(tmp_path, Uses(do), X)
    assert actual["mode"] == "differs"
    assert actual["reason"].startswith("in evaluation mode, tests/export/test_export_modes.py:")


@pytest.mark.parametrize("name", ["gpt2", "gpt2_eager", "bert", "bert_eager", "vit_eager"])
def test_hugging_face_with_dropout(name, tmp_path):
    module, args, kwargs = zoo.MODELS[name](layers=1)
    for m in module.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.1
        if hasattr(m, "attention_dropout") and isinstance(m.attention_dropout, float):
            m.attention_dropout = 0.1
    assert Exported(tmp_path, module, args, kwargs).extra["eval"] == flags()


def test_torchs_own_modules(tmp_path):
    attention = nn.MultiheadAttention(8, 2, dropout=0.1)
    assert mode(tmp_path, attention, *[torch.randn(3, 2, 8)] * 3) == flags()
    assert mode(tmp_path, nn.LSTM(8, 8, 2, dropout=0.1), torch.randn(3, 2, 8)) == flags()
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    actual = mode(tmp_path, spectral, X)
    assert actual["mode"] == "differs"
    assert "parametrizations.py:" in actual["reason"]


def test_flags_of_modules_stay_as_they_are(tmp_path):
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1))
    module[1].eval()  # frozen in a model that trains
    exported = Exported(tmp_path, module, (X,))
    assert [m.training for m in module.modules()] == [True, True, False, True]
    arguments = {e["name"]: e["arg"] for e in exported.node("batch_norm")["inputs"]}
    assert arguments["training"] == {"as_bool": False}
    assert exported.extra["eval"] == flags()

    module.eval()
    exported = Exported(tmp_path, module, (X,))
    assert not any(m.training for m in module.modules())
    assert exported.targets() == ["linear", "add_", "batch_norm", "dropout"]

    exported = Exported(tmp_path, module.train(), (X,), training=False)
    assert all(m.training for m in module.modules())
    assert exported.extra["training"] is False
    assert exported.extra["eval"] == SAME
    assert exported.targets() == ["linear", "batch_norm", "dropout"]
