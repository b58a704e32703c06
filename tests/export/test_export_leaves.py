"""Functions that stay whole while a model is exported."""

import sys
import threading

import pytest
import torch
import whole
from exported import Exported
from torch import nn
from torch.utils.checkpoint import checkpoint

import nnscaler
import user_cases
from nnscaler.errors import InputError
from nnscaler.register import registered


class Calls(nn.Module):
    """Calls a function on what a linear layer makes."""

    def __init__(self, call) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.ones(4))
        self.call = call

    def forward(self, x):
        return self.call(self.l(x), self.w)


def export(tmp_path, call) -> Exported:
    return Exported(tmp_path, Calls(call), (torch.randn(3, 4),))


def leaf(exported: Exported, index: int = 0) -> dict:
    return exported.extra["leaves"][index]


def refused(tmp_path, call) -> str:
    with pytest.raises(InputError) as error:
        export(tmp_path, call)
    return str(error.value)


def test_autograd_function_is_one_operator(tmp_path):
    module, args, _ = user_cases.quant()
    exported = Exported(tmp_path, module, args)
    assert exported.targets() == ["linear", "mul", "nnscaler_leaf.user_cases__Ste_apply", "sum"]
    assert exported.extra["leaves"] == [
        {
            "target": "nnscaler_leaf.user_cases__Ste_apply.default",
            "signature": "user_cases.Ste.apply",
            "module": "user_cases",
            "qualname": "Ste.apply",
            "autograd_function": True,
            "arguments": {"user_cases__ste_apply": [{"name": "x", "keyword": False, "tensor": 0}]},
        }
    ]
    assert exported.requires_grad("user_cases__ste_apply")
    node = exported.node("user_cases__ste_apply")
    assert node["inputs"][0]["arg"] == {"as_tensors": [{"name": "mul"}]}
    assert node["metadata"]["nn_module_stack"] == "L__self__,,user_cases.Quant"
    assert "return Ste.apply(self.l(x) * 4).sum()" in node["metadata"]["stack_trace"]
    # Eager calls are what they were.
    module(*args).backward()
    assert module.l.weight.grad.abs().sum() > 0


def test_bound_long_ago_in_a_checkpoint_with_two_results(tmp_path):
    exported = Exported(tmp_path, *user_cases.quant(user_cases.QuantTwice))
    (entry,) = exported.extra["leaves"]
    assert entry["target"] == "nnscaler_leaf.user_cases__RoundTo_apply.results2"
    (node,) = [n for n in exported.nodes if "RoundTo" in n["target"]]
    first, second = (output["as_tensor"]["name"] for output in node["outputs"])
    assert entry["arguments"] == {
        first: [
            {"name": "x", "keyword": False, "tensor": 0},
            {"name": "step", "keyword": False, "literal": "0.5"},
        ]
    }
    assert exported.requires_grad(first) and not exported.requires_grad(second)
    assert exported.extra["recompute"] == [
        {"module": "", "preserve_rng_state": True, "nodes": ["linear", node["name"]]}
    ]


def test_setup_context_and_defaults(tmp_path):
    entry = leaf(export(tmp_path, lambda x, w: whole.Setup.apply(x)))
    assert list(entry["arguments"].values()) == [
        [
            {"name": "x", "keyword": False, "tensor": 0},
            {"name": "k", "keyword": False, "literal": "2"},
            {"name": "flag", "keyword": False, "literal": "None"},
        ]
    ]


def test_tensor_by_keyword(tmp_path):
    entry = leaf(Exported(tmp_path, user_cases.Scaled(), (torch.randn(4, 8),)))
    assert entry["annotation"] == "b d, d -> b d"
    assert entry["name"] == "scaled"
    assert entry["autograd_function"] is False
    assert entry["arguments"] == {
        "user_cases__scaled": [
            {"name": "x", "keyword": False, "tensor": 0},
            {"name": "w", "keyword": True, "tensor": 1},
        ]
    }


def test_arguments_come_in_the_order_of_the_signature(tmp_path):
    entry = leaf(export(tmp_path, lambda x, w: whole.biased(w=w, x=x)))
    # An operand left at its default is written out: operands count from the first.
    assert list(entry["arguments"].values()) == [
        [
            {"name": "x", "keyword": True, "tensor": 0},
            {"name": "mode", "keyword": True, "literal": "'sum'"},
            {"name": "w", "keyword": True, "tensor": 1},
        ]
    ]


def test_list_of_tensors(tmp_path):
    exported = export(tmp_path, lambda x, w: sum(whole.scale_all([x, x * 2], factor=2.0)))
    (arguments,) = leaf(exported)["arguments"].values()
    assert arguments == [
        {"name": "xs", "keyword": False, "tensors": [0, 1], "type": "list"},
        {"name": "factor", "keyword": True, "literal": "2.0"},
    ]
    assert leaf(exported)["target"].endswith(".results2")


def test_list_of_one_result(tmp_path):
    exported = export(tmp_path, lambda x, w: whole.scale_all((x, None))[0])
    (arguments,) = leaf(exported)["arguments"].values()
    assert arguments[0] == {"name": "xs", "keyword": False, "tensors": [0, None], "type": "tuple"}
    (node,) = [n for n in exported.nodes if "scale_all" in n["target"]]
    assert len(node["outputs"][0]["as_tensors"]) == 1


def test_annotation_made_by_a_function(tmp_path):
    entry = leaf(export(tmp_path, lambda x, w: whole.add_all(x, x * 2, x * 3, scale=0.5)))
    assert "annotation" not in entry
    assert entry["annotations"] == {"whole__add_all": "a b, a b, a b -> a b"}
    (arguments,) = entry["arguments"].values()
    assert [a["name"] for a in arguments] == ["xs_0", "xs_1", "xs_2", "scale"]


def test_fake_fn_stands_in(tmp_path):
    exported = export(tmp_path, lambda x, w: whole.through_numpy(x))
    assert leaf(exported)["signature"] == "whole.through_numpy"
    assert exported.requires_grad("whole__through_numpy")


def test_no_result_no_tensor_and_in_place(tmp_path):
    def call(x, w):
        whole.note(x)
        return whole.add_one_(x) + whole.zeros(4)

    exported = export(tmp_path, call)
    assert exported.targets() == [
        "linear",
        "nnscaler_leaf.whole__note",
        "nnscaler_leaf.whole__add_one_",
        "nnscaler_leaf.whole__zeros",
        "add",
    ]
    assert list(leaf(exported)["arguments"]) == ["whole__note"]
    assert exported.node("add")["inputs"][0]["arg"] == {"as_tensor": {"name": "whole__add_one_"}}


def test_scripted_and_compiled(tmp_path):
    exported = export(tmp_path, lambda x, w: whole.scripted(x, 3) + whole.compiled(x))
    assert [entry["signature"] for entry in exported.extra["leaves"]] == [
        "whole.scripted",
        "whole.compiled",
    ]
    assert whole.scripted(torch.ones(2, 2), 3).sum() == 12


def test_size_that_depends_on_data(tmp_path):
    exported = export(tmp_path, lambda x, w: whole.positive(x.flatten()).sum() + x.sum())
    (symbol,) = exported.extra["symbols"].values()
    assert symbol == {"min": 0, "max": 12}


def test_symbols_inside_stay_inside(tmp_path):
    exported = export(tmp_path, lambda x, w: whole.count_positive(x))
    assert exported.extra["symbols"] == {}
    assert exported.targets() == ["linear", "nnscaler_leaf.whole__count_positive"]


def test_constants_reach_a_leaf(tmp_path):
    constant = torch.ones(3, 4)
    exported = export(tmp_path, lambda x, w: user_cases.scaled(constant, w))
    assert exported.targets()[-1] == "nnscaler_leaf.user_cases__scaled"


def test_leaf_under_no_grad_and_in_a_reentrant_checkpoint(tmp_path):
    def call(x, w):
        y = checkpoint(user_cases.Ste.apply, x, use_reentrant=True)
        with torch.no_grad():
            z = user_cases.Ste.apply(y)
        return y + z

    exported = export(tmp_path, call)
    names = list(leaf(exported)["arguments"])
    assert [exported.requires_grad(n) for n in names[:1]] == [True]
    assert exported.extra["recompute"][0]["nodes"] == names[:1]
    assert len(names) == 2


def test_functions_within_a_leaf_are_not_leaves(tmp_path):
    exported = export(tmp_path, lambda x, w: whole.outer(x))
    assert [entry["signature"] for entry in exported.extra["leaves"]] == ["whole.outer"]


def test_other_threads_are_left_alone(tmp_path):
    results = []

    def call(x, w):
        thread = threading.Thread(
            target=lambda: results.append(user_cases.scaled(torch.ones(2, 2), torch.ones(2)))
        )
        thread.start()
        thread.join()
        return x

    export(tmp_path, call)
    assert results[0].shape == (2, 2)


def test_everything_is_undone(tmp_path):
    from torch.utils import checkpoint as module

    codes = [f.__code__ for f in (user_cases.scaled, module.checkpoint, torch.Tensor.register_hook)]
    apply = torch.autograd.Function.__dict__["apply"]
    for call in (lambda x, w: user_cases.scaled(x, w), lambda x, w: x.missing):
        try:
            export(tmp_path, call)
        except InputError:
            pass
        after = (user_cases.scaled, module.checkpoint, torch.Tensor.register_hook)
        assert [f.__code__ for f in after] == codes
        assert torch.autograd.Function.__dict__["apply"] is apply
        assert "apply" not in torch.autograd.function._SingleLevelFunction.__dict__
        assert "training" not in nn.Module.__dict__


# --- What is refused ---


def here(offset: int) -> str:
    """This file and the line some lines above the caller's."""
    return f"tests/export/test_export_leaves.py:{sys._getframe(1).f_lineno + offset}"


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)  # messages show relative paths


def test_nested_function(tmp_path):
    class Local(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x)

    message = refused(tmp_path, lambda x, w: Local.apply(x))
    assert message == (
        f"{here(-2)}: autograd Function test_nested_function.Local is defined inside a function, where generated code "
        "cannot import it; move it to the top of a module"
    )


def test_argument_that_cannot_be_written(tmp_path):
    message = refused(tmp_path, lambda x, w: user_cases.scaled(x, w, eps=nn.ReLU()))
    assert message == (
        f"{here(-2)}: user_cases.scaled: argument eps is a torch.nn.modules.activation.ReLU, which generated code cannot "
        "write down; pass tensors, lists of tensors, numbers, strings or None, and take sizes from a tensor inside the "
        "function"
    )
    message = refused(tmp_path, lambda x, w: whole.scale_all([x, 3]))
    assert message == (
        f"{here(-2)}: whole.scale_all: argument xs is a list that mixes tensors with other values, which generated code "
        "cannot write down; pass tensors, lists of tensors, numbers, strings or None, and take sizes from a tensor "
        "inside the function"
    )


def test_result_that_is_no_tensor(tmp_path):
    assert refused(tmp_path, lambda x, w: whole.shape_of(x)) == (
        f"{here(-1)}: whole.shape_of returns (int, int); a function that stays whole returns a tensor or a tuple of "
        "tensors"
    )
    assert refused(tmp_path, lambda x, w: whole.as_dict(x)) == (
        f"{here(-1)}: whole.as_dict returns a dict; a function that stays whole returns a tensor or a tuple of tensors"
    )


def test_call_that_does_not_fit_the_annotation(tmp_path):
    assert refused(tmp_path, lambda x, w: user_cases.scaled(x, 2.0)) == (
        f'{here(-1)}: user_cases.scaled: argument w is 2.0, and its annotation "b d, d -> b d" has "d" for it; write '
        "'?' for what is no tensor"
    )
    assert refused(tmp_path, lambda x, w: user_cases.scaled(x, w, eps=w)) == (
        f'{here(-1)}: user_cases.scaled: argument eps is a tensor, and its annotation "b d, d -> b d" has no input for '
        "it (it has 2); add one, or '?' if it is never split"
    )
    assert refused(tmp_path, lambda x, w: whole.twice(x)) == (
        f'{here(-1)}: whole.twice returned 2 tensors, and its annotation "a b -> a b" has 1 output; write one for each'
    )
    assert refused(tmp_path, lambda x, w: whole.wrong_annotation(x)) == (
        f"{here(-1)}: whole.wrong_annotation: its annotation function returned a NoneType; return a string such as "
        "'a b -> a b'"
    )


def test_function_that_fails_without_values(tmp_path):
    message = refused(tmp_path, lambda x, w: whole.needs_values(x))
    assert message == (
        f'{whole.__file__.replace(str(nnscaler_root()), "")}:{line_of("if x.sum() > 0")}: "if x.sum() > 0:" branches on '
        "the value of a tensor, which is not known while the model is exported; choose with torch.where, branch with "
        "torch.cond, or keep it whole in a function registered with nnscaler.register_op"
    )


def nnscaler_root() -> str:
    import zoo

    return f"{zoo.ROOT}/"


def line_of(text: str) -> int:
    lines = open(whole.__file__).read().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_registered_once_per_process():
    assert registered["user_cases.scaled"].function is user_cases.scaled
    assert nnscaler.register_op is sys.modules["nnscaler.register"].register_op
