"""What export refuses: one line each, at the user's own line."""

import random
import traceback

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import nnscaler
import user_cases
import zoo
from nnscaler.errors import InputError

_WHOLE = "keep it whole in a function registered with nnscaler.register_op"
_UNKNOWN = "is not known while the model is exported"
_BRANCH = f"branches on the value of a tensor, which {_UNKNOWN}; choose with torch.where, branch with torch.cond, or {_WHOLE}"
_LOOP = (
    f"loops as often as a tensor's value says, which {_UNKNOWN}; loop over all there may be (for i, expert in "
    "enumerate(self.experts), each with its own rows, or each with all rows and torch.where), or "
    f"{_WHOLE}"
)
_ASSERT = (
    f"asserts something about a tensor's value, which {_UNKNOWN}; check outside of forward or with "
    f"torch._assert_async, or {_WHOLE}"
)
_NEEDS = f"needs the value of a tensor, which {_UNKNOWN}; compute with operators on tensors instead, or {_WHOLE}"


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)  # messages show relative paths


def refused(tmp_path, module, args=(), kwargs=None, **options) -> str:
    state = {name: dict(m.__dict__) for name, m in module.named_modules()}
    with pytest.raises(InputError) as error:
        nnscaler.export(module, args, kwargs, tmp_path / "model.pt2", **options)
    assert {name: dict(m.__dict__) for name, m in module.named_modules()} == state
    assert not list(tmp_path.iterdir())
    assert "\n" not in str(error.value)
    return str(error.value)


def at(function, text: str) -> str:
    """`file:line: "source"` of a line of a function."""
    code = function.__code__
    lines = open(code.co_filename).read().splitlines()
    number = next(i for i in range(code.co_firstlineno + 1, len(lines) + 1) if text in lines[i - 1])
    file = code.co_filename.replace(f"{zoo.ROOT}/", "")
    return f'{file}:{number}: "{lines[number - 1].strip()}"'


def test_branch_on_a_value(tmp_path):
    module, args, _ = user_cases.gate()
    assert refused(tmp_path, module, args) == f"{at(user_cases.Gate.forward, 'if y')} {_BRANCH}"


def test_loop_over_experts_that_were_hit(tmp_path):
    module, args, _ = user_cases.moe()
    assert refused(tmp_path, module, args) == f"{at(user_cases.Moe.forward, 'for k')} {_LOOP}"


@pytest.mark.parametrize("cls", [user_cases.SparseMoe, user_cases.DenseMoe])
def test_its_rewrites_are_exported(cls, tmp_path):
    module, args, _ = user_cases.moe(cls)
    path = nnscaler.export(module, args, path=tmp_path / "model.pt2")
    loaded = torch.export.load(path).module()
    loaded.load_state_dict(module.state_dict(), assign=True)
    assert torch.allclose(loaded(*args), module(*args))


def forward_of(cls: type) -> str:
    code = cls.forward.__code__
    return f"{code.co_filename.replace(f'{zoo.ROOT}/', '')}:{code.co_firstlineno}"


class Does(nn.Module):
    """Does what a function says, which takes (self, x)."""

    def __init__(self, do) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.register_buffer("flag", torch.tensor(True))
        self.do = do

    def forward(self, x):
        return self.do(self, x)


_FORWARD = forward_of(Does)


def ternary(s, x):
    return x / 2 if x.sum() > 0 and not x.mean() < 1 else x


def while_loop(s, x):
    while x.sum() > 3:
        x = x / 2
    return x


def buffer_decides(s, x):
    if s.flag:
        return s.l(x)
    return x


def number_decides(s, x):
    largest = x.amax().item()
    if largest > 1:
        return s.l(x)
    return x


def asserted(s, x):
    assert (x >= 0).all(), "negative"
    return s.l(x)


def comprehension(s, x):
    return sum(s.l(x)[k] for k in x.nonzero().flatten())


def range_of_value(s, x):
    for _ in range(int(x.sum())):
        x = s.l(x)
    return x


def to_numpy(s, x):
    return s.l(x) * float(x.detach().numpy().mean())


def formatted(s, x):
    return s.l(x), f"{x.mean():.3f}"


def close(s, x):
    return s.l(x) * torch.allclose(x, x)


@pytest.mark.parametrize(
    "do, text, what",
    [
        (ternary, "return", _BRANCH),
        (while_loop, "while", _BRANCH),
        (buffer_decides, "if", _BRANCH),
        (number_decides, "largest > 1", _BRANCH),
        (asserted, "assert", _ASSERT),
        (comprehension, "return", _LOOP),
        (range_of_value, "for", _LOOP),
        (to_numpy, "return", _NEEDS),
        (formatted, "return", _NEEDS),
        (close, "return", _NEEDS),
    ],
)
def test_values_are_asked_for(do, text, what, tmp_path):
    assert refused(tmp_path, Does(do), (torch.randn(4, 8),)) == f"{at(do, text)} {what}"


def wrong_shape(s, x):
    return s.l(x[:, :7])


def missing(s, x):
    return s.l(x) + s.nothing


def test_the_models_own_errors(tmp_path):
    after = f"; if the model runs as it is on these arguments, {_WHOLE}"
    assert refused(tmp_path, Does(wrong_shape), (torch.randn(4, 8),)) == (
        f"{at(wrong_shape, 'return')} raised RuntimeError: a and b must have same reduction dim, but got [4, 7] X "
        f"[8, 8]{after}"
    )
    assert refused(tmp_path, Does(missing), (torch.randn(4, 8),)) == (
        f"{at(missing, 'return')} raised AttributeError: 'Does' object has no attribute 'nothing'{after}"
    )


def hooks(s, x):
    y = s.l(x)
    y.register_hook(lambda g: g * 2)
    return y.sum()


def runs_backward(s, x):
    y = s.l(x).sum()
    y.backward()
    return y


def test_what_would_be_lost(tmp_path):
    assert refused(tmp_path, Does(hooks), (torch.randn(4, 8),)) == (
        f"{at(hooks, 'hook(')} hooks into the gradient, which an exported model would not do; write it as a "
        "torch.autograd.Function whose backward changes the gradient"
    )
    assert refused(tmp_path, Does(runs_backward), (torch.randn(4, 8),)) == (
        f"{at(runs_backward, 'backward(')} runs backward inside of forward, which an exported model would not do; "
        "return the loss, and call backward on it outside"
    )


def test_hooks_of_modules_and_parameters(tmp_path):
    module, args, _ = zoo.mlp()
    advice = (
        "remove it before the export; what it does to gradients can be a torch.autograd.Function"
    )
    handle = module.fc1.register_full_backward_hook(lambda *a: None)
    assert refused(tmp_path, module, args) == (
        f"module fc1 has a backward hook, which an exported model does not call; {advice}"
    )
    handle.remove()
    module.fc2.weight.register_hook(lambda g: g)
    assert refused(tmp_path, module, args) == (
        f"parameter fc2.weight has a gradient hook, which an exported model does not call; {advice}"
    )


def draws_python(s, x):
    return x if random.random() < 2 else s.l(x)


def draws_numpy(s, x):
    return x * float(numpy.random.rand())


@pytest.mark.parametrize("do, name", [(draws_python, "random"), (draws_numpy, "numpy.random")])
def test_random_numbers_of_python(do, name, tmp_path):
    module = Does(do)
    states = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()
    assert refused(tmp_path, module, (torch.ones(4, 8),)) == (
        f"{_FORWARD}: Does.forward draws from Python's {name}, and the numbers drawn while exporting would be kept for "
        "good; draw with torch.rand, or switch it off"
    )
    assert states[0] == random.getstate()
    assert states[1] == numpy.random.get_state()[1].tolist()
    assert torch.equal(states[2], torch.get_rng_state())


def draws_and_fails(s, x):
    return x * random.random() + s.nothing


def test_random_numbers_come_back_after_a_failure(tmp_path):
    state = random.getstate()
    refused(tmp_path, Does(draws_and_fails), (torch.ones(4, 8),))
    assert random.getstate() == state


def sets_state(s, x):
    s.cache = s.l(x)
    s.do_count = getattr(s, "do_count", 0) + 1
    return s.cache


def test_state_set_in_forward(tmp_path):
    module = Does(sets_state)
    module.do_count = 0
    with pytest.warns(UserWarning) as warnings:
        nnscaler.export(module, (torch.ones(4, 8),), path=tmp_path / "model.pt2")
    assert [str(w.message) for w in warnings] == [
        f"{_FORWARD}: Does.forward sets self.do_count, self.cache; an exported model computes with what it was and does "
        "not keep it from one call to the next: register a buffer if it must"
    ]
    assert module.do_count == 0 and not hasattr(module, "cache")


# --- Arguments and results ---


class Opaque:
    pass


def test_arguments(tmp_path):
    module, args, _ = zoo.mlp()
    where = forward_of(zoo.MLP)
    assert refused(tmp_path, module, ()) == (
        f"{where}: the sample arguments do not fit MLP.forward(x: torch.Tensor) -> torch.Tensor: missing a required "
        "argument: 'x'; give args and kwargs as the model is called"
    )
    assert refused(tmp_path, module, args[0]) == (
        "MLP.forward: args is a torch.Tensor; give a tuple of sample arguments, such as (x,)"
    )
    assert refused(tmp_path, module, (), [1]) == (
        "MLP.forward: kwargs is a list; give a dict of sample arguments"
    )
    assert refused(tmp_path, Does(lambda s, x: x), ({"a": [Opaque()]},)) == (
        "Does.forward's argument x['a'][0] is a test_export_refusals.Opaque, which export cannot take apart; pass "
        "tensors, numbers, strings, None, and tuples, lists, dicts, namedtuples or dataclasses of those"
    )


def test_results(tmp_path):
    returns = "return tensors, or tuples, lists, dicts, namedtuples or dataclasses of tensors"
    assert refused(tmp_path, Does(lambda s, x: (x, Opaque())), (torch.ones(2),)) == (
        f"{_FORWARD}: Does.forward's result[1] is a test_export_refusals.Opaque, which export cannot take apart; {returns}"
    )
    module, args, kwargs = zoo.llama(layers=1)
    module.config.use_cache = True
    message = refused(tmp_path, module, args, kwargs)
    assert ".venv" in message and "modeling_llama.py:" in message
    assert message.endswith(
        "LlamaForCausalLM.forward's result.cache is a transformers.cache_utils.DynamicCache, which export "
        f"cannot take apart; {returns}, or call it with use_cache=False"
    )


def test_class_defined_in_a_function(tmp_path):
    from dataclasses import dataclass

    @dataclass
    class Local:
        x: torch.Tensor

    assert refused(tmp_path, Does(lambda s, x: Local(x)), (torch.ones(2),)) == (
        f"{_FORWARD}: Does.forward's result is a test_export_refusals.test_class_defined_in_a_function.Local, a class "
        "defined inside a function, where generated code cannot import it; move the class to the top of a module"
    )


def test_what_is_no_model(tmp_path):
    def export(*args, **kwargs):
        with pytest.raises(InputError) as error:
            nnscaler.export(*args, path=tmp_path / "model.pt2", **kwargs)
        return str(error.value)

    assert export(3) == (
        "export: expected a torch.nn.Module or a function that returns (module, args, kwargs), not a int"
    )
    assert export(nn.Linear) == (
        "export: expected a torch.nn.Module or a function that returns (module, args, kwargs), not a "
        "torch.nn.modules.linear.Linear"
    )
    assert export(nn.Linear(2, 2), meta=True) == (
        "export: meta is for a function that makes the model, and a module was given; build it under "
        'torch.device("meta") instead, or give the function'
    )
    assert export(lambda: nn.Linear(2, 2)).endswith(
        "<lambda>() returned a torch.nn.modules.linear.Linear; return (module, args, kwargs)"
    )
    assert export(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))) == (
        "export: TopLevelTracedModule is a scripted module, which cannot be exported; give the module as it was "
        "before"
    )
    assert export(torch.compile(nn.Linear(2, 2))) == (
        "export: the Linear is compiled by torch.compile; give the module as it was before"
    )


# --- Dynamic shapes ---


def fixed_batch(s, x):
    return s.l(x).view(4, 2, 4)


def at_least_four(s, x):
    return s.l(x) if x.shape[0] > 3 else x


@pytest.mark.parametrize(
    "do, size, shapes, what",
    [
        (
            fixed_batch,
            4,
            {"x": {0: Dim("batch")}},
            "batch is declared to vary, and the model works for 4 only; compute with the tensor's own shape instead of "
            "4, or leave it out",
        ),
        (
            fixed_batch,
            4,
            {"x": {0: Dim.DYNAMIC}},
            "x.shape[0] is declared to vary, and the model works for 4 only; compute with the tensor's own shape "
            "instead of 4, or leave it out",
        ),
        (
            at_least_four,
            1,
            {"x": {0: Dim("batch")}},
            "batch is 1 in the sample, which stands for no other size; give a sample with 2 or more",
        ),
        (
            at_least_four,
            4,
            {"x": {0: Dim("batch")}},
            "batch = x.shape[0] may be any, and the model works where 4 <= x.shape[0] only; declare batch = "
            "Dim('batch', min=4)",
        ),
        (
            at_least_four,
            4,
            {"x": {5: Dim("d")}},
            "they name a dimension that an argument does not have",
        ),
    ],
)
def test_dynamic_shapes_that_do_not_fit(do, size, shapes, what, tmp_path):
    message = refused(tmp_path, Does(do), (torch.ones(size, 8),), dynamic_shapes=shapes)
    assert message == f"{_FORWARD}: dynamic_shapes do not fit Does.forward: {what}"


def test_dynamic_shapes_of_unknown_arguments(tmp_path):
    module = Does(at_least_four)
    message = refused(tmp_path, module, (torch.ones(4, 8),), dynamic_shapes={"y": {0: Dim("d")}})
    assert message.startswith(f"{_FORWARD}: dynamic_shapes do not fit Does.forward: When")


def vmapped(s, x):
    return torch.vmap(s.l)(x)


def test_function_transforms(tmp_path):
    assert refused(tmp_path, Does(vmapped), (torch.ones(4, 8),)) == (
        f"{at(vmapped, 'vmap')} transforms a function (torch.vmap, torch.func), which cannot be exported; write it with "
        f"operators on batches, or {_WHOLE}"
    )


def test_archive_that_cannot_be_written(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no\nthanks")

    monkeypatch.setattr(torch.export, "save", fail)
    module, args, _ = zoo.mlp()
    assert refused(tmp_path, module, args) == (
        f"{forward_of(zoo.MLP)}: what was exported cannot be written to an archive: RuntimeError: no"
    )


# --- How it looks ---


def test_the_tracers_stack_is_out_of_sight(tmp_path, capfd, monkeypatch):
    module, args, _ = user_cases.gate()
    with pytest.raises(InputError) as error:
        nnscaler.export(module, args, path=tmp_path / "model.pt2")
    assert capfd.readouterr() == ("", "")
    shown = "".join(traceback.format_exception(error.value))
    assert torch.__path__[0] not in shown
    assert type(error.value.cause).__name__ == "GuardOnDataDependentSymNode"

    monkeypatch.setenv("NNSCALER_DEBUG", "1")
    with pytest.raises(InputError) as error:
        nnscaler.export(module, args, path=tmp_path / "model.pt2")
    assert "GuardOnDataDependentSymNode" in "".join(traceback.format_exception(error.value))


def test_in_a_library(tmp_path):
    class Wrapped(nn.Module):
        def forward(self, x):
            return F.one_hot(x).sum()

    message = refused(tmp_path, Wrapped(), (torch.tensor([0, 1]),))
    line = at(Wrapped.forward, "one_hot")
    assert message.startswith(f"{line} needs the value of a tensor")
