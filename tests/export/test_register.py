"""What register_op accepts, and how it refuses the rest."""

import importlib
import sys

import pytest
import torch

import nnscaler
from nnscaler.errors import InputError, UnsupportedError
from nnscaler.register import registered

_WRITE = (
    "write inputs -> outputs, tensors separated by commas, dimensions by blanks, as in "
    '"b m^ k+, n k+ -> b m^ n"'
)
_ONE_EACH = "write one input for each leading parameter, '?' for what is no tensor"


@pytest.fixture(autouse=True)
def _registry(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)  # messages show relative paths
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)


def where(function) -> str:
    function = getattr(function, "forward", function)
    return f"tests/export/test_register.py:{function.__code__.co_firstlineno}"


def refused(annotation, target, kind=InputError, **options) -> str:
    with pytest.raises(kind) as error:
        nnscaler.register_op(annotation, **options)(target)
    assert isinstance(error.value, (ValueError, NotImplementedError))
    return str(error.value)


def one(x: torch.Tensor, k: int = 1) -> torch.Tensor:
    return x * k


def two(x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    return x * w


def untyped(x, w, b=None, *rest, **more):
    return x


def mixed(x: torch.Tensor, n: int, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, w


def lists(xs: list[torch.Tensor], w: torch.Tensor | None) -> list[torch.Tensor]:
    return xs


class Old(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, w: torch.Tensor, k: float):
        return x


class New(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, k: float = 2.0):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


@pytest.mark.parametrize(
    "annotation, target, signature",
    [
        ("a b -> a b", one, "test_register.one"),
        ("* -> *", one, "test_register.one"),
        ("a (b 2) -> a (b 2)", one, "test_register.one"),
        ("a k+: /k -> a", one, "test_register.one"),
        ("a b, ? -> a b", one, "test_register.one"),
        ("b d, d -> b d", two, "test_register.two"),
        ("b d, d, ? -> b d", two, "test_register.two"),
        ("a, b -> a", untyped, "test_register.untyped"),
        ("a, b, c, d, e -> a", untyped, "test_register.untyped"),
        ("a, ?, b -> a, b", mixed, "test_register.mixed"),
        ("?, d -> ?, ?", lists, "test_register.lists"),
        ("a, b, ? -> a", Old, "test_register.Old.apply"),
        ("a, b -> a", Old.apply, "test_register.Old.apply"),
        ("a, ? -> a", New, "test_register.New.apply"),
        (lambda x, k=1: "a b -> a b", one, "test_register.one"),
    ],
)
def test_accepted(annotation, target, signature):
    assert nnscaler.register_op(annotation)(target) is target
    op = registered[signature]
    assert op.annotation == annotation
    assert f"{op.module}.{op.qualname}" == signature


def test_options_are_kept():
    def fake(x):
        return x

    nnscaler.register_op("a -> a", "first", input_gen_fn=fake, fake_fn=fake)(one)
    op = registered["test_register.one"]
    assert (op.name, op.input_gen_fn, op.fake_fn) == ("first", fake, fake)
    nnscaler.register_op("a, b -> a")(Old)
    assert registered["test_register.Old.apply"].name == "Old"


@pytest.mark.parametrize(
    "annotation, what",
    [
        ("a b", "has no '->'"),
        ("a -> b -> c", "has more than one '->'"),
        ("a, , b -> a", "has an empty operand"),
        ("(a b -> a", "has brackets that do not match"),
        ("a) -> a", "has brackets that do not match"),
        ("((a b) c) -> a", "has brackets that do not match"),
        ("a-b -> a", "has 'a-b', which is no dimension"),
        ("a+^ -> a", "has 'a+^', which is no dimension"),
    ],
)
def test_malformed_annotations(annotation, what):
    assert refused(annotation, one) == f'{where(one)}: annotation "{annotation}" {what}; {_WRITE}'


def test_annotations_that_do_not_fit_the_signature():
    assert refused("b d -> b d", two) == (
        f'{where(two)}: annotation "b d -> b d" has 1 input (b d), and none of them is for w of two(x: Tensor, w: '
        f"Tensor, eps: float); {_ONE_EACH}"
    )
    assert refused("a, b, c, d -> a", two) == (
        f'{where(two)}: annotation "a, b, c, d -> a" has 4 inputs (a; b; c; d), and two(x: Tensor, w: Tensor, eps: '
        f"float) has 3 parameters; {_ONE_EACH}"
    )
    assert refused("a, b -> a, b", mixed) == (
        f'{where(mixed)}: annotation "a, b -> a, b" has 2 inputs (a; b), and none of them is for w of mixed(x: Tensor, '
        f"n: int, w: Tensor); {_ONE_EACH}"
    )
    assert refused("a, b, c -> a, b", mixed) == (
        f'{where(mixed)}: annotation "a, b, c -> a, b" has "b" for n, which is no tensor in mixed(x: Tensor, n: int, '
        "w: Tensor); write '?' for it, or put the tensors first"
    )
    assert refused("a, b -> a", lists) == (
        f'{where(lists)}: annotation "a, b -> a" has "a" for xs, which is no tensor in lists(xs: list[torch.Tensor], '
        "w: torch.Tensor | None); write '?' for it, or put the tensors first"
    )
    assert refused("a -> a, a", one) == (
        f'{where(one)}: annotation "a -> a, a" has 2 outputs, and one returns 1 tensor; write one output for each'
    )
    assert refused("a, ?, b -> a", mixed) == (
        f'{where(mixed)}: annotation "a, ?, b -> a" has 1 output, and mixed returns 2 tensors; write one output for '
        "each"
    )
    assert refused("a -> a", Old) == (
        f'{where(Old)}: annotation "a -> a" has 1 input (a), and none of them is for w of Old(x: Tensor, w: Tensor, k: '
        f"float); {_ONE_EACH}"
    )


def test_what_cannot_be_registered():
    assert refused(3, one) == (
        "register_op: the annotation is a string or a function that returns one, not a int; write "
        "@nnscaler.register_op('a b -> a b')"
    )
    assert refused("a -> a", lambda x: x) == (
        f"{here(-1)}: a lambda has no name that generated code could import; define a function in a module"
    )

    def nested(x):
        return x

    move = "where generated code cannot import it; move it to the top of a module"
    assert refused("a -> a", nested) == (
        f"{where(nested)}: function test_what_cannot_be_registered.nested is defined inside a function, {move}"
    )
    assert refused("a -> a", torch.sin) == (
        "register_op: sin is a builtin_function_or_method; register a Python function, "
        "an autograd Function or a scripted function (wrap it in a function of a module)"
    )
    assert refused("a -> a", torch.nn.functional.relu).endswith(
        ": torch.nn.functional.relu is an operator that nnscaler knows; it needs no registration"
    )
    assert refused("a -> a", Old.forward.__get__(Old)) == (
        "register_op: Old.forward is a method; register the autograd Function itself"
    )


def here(offset: int) -> str:
    return f"tests/export/test_register.py:{sys._getframe(1).f_lineno + offset}"


def test_options_that_are_not_offered():
    assert refused("a -> a", one, UnsupportedError, emit_fn=lambda: None) == (
        "register_op: emit_fn is not offered: a function is split as its annotation says; leave it out and write the "
        "rule as an annotation"
    )
    assert refused("a -> a", one, UnsupportedError, transform_rules=(1,)) == (
        "register_op: transform_rules is not offered: a function is split as its annotation says; leave it out and "
        "write the rule as an annotation"
    )
    assert refused("a -> a", one, UnsupportedError, code_impl_pattern="source") == (
        "register_op: code_impl_pattern='source' is not offered: generated code imports the function; leave it out"
    )
    assert refused("a -> a", one, code_impl_pattern="paste") == (
        "register_op: code_impl_pattern is 'paste'; write 'import' or leave it out"
    )
    assert refused("a -> a", one, fake_fn=3) == "register_op: fake_fn is a int, not a function"
    assert refused("a, b -> a", Old, fake_fn=one) == (
        f"{where(Old)}: fake_fn is given for test_register.Old.apply, and an autograd Function needs none; leave it out"
    )


def test_registered_twice():
    nnscaler.register_op("a -> a")(one)
    assert refused("* -> *", one) == (
        f'{where(one)}: test_register.one is registered already, as "a -> a", and now as "* -> *"; register it once'
    )
    nnscaler.register_op(lambda x, w: "a, a -> a")(two)
    assert refused("a, a -> a", two) == (
        f'{where(two)}: test_register.two is registered already, as a function, and now as "a, a -> a"; register it '
        "once"
    )


def test_module_loaded_again(tmp_path, monkeypatch):
    (tmp_path / "reloaded.py").write_text(
        "import nnscaler\n@nnscaler.register_op('a -> a')\ndef fn(x):\n    return x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded")
    first = module.fn
    importlib.reload(module)
    assert registered["reloaded.fn"].function is module.fn is not first


def test_main(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(one, "__module__", "__main__")
    monkeypatch.setattr(main, "__file__", "train.py", raising=False)
    nnscaler.register_op("a -> a")(one)
    assert registered["__main__.one"].module == "__main__"
    monkeypatch.delattr(main, "__file__")
    del registered["__main__.one"]
    assert refused("a -> a", one) == (
        f"{where(one)}: function one is defined in an interactive session, where generated code cannot import it; move "
        "it to the top of a module"
    )


# --- Marks ---


def test_marks():
    x = torch.zeros(2, 3, 4)
    assert nnscaler.mark_dynamic(x, [0, -1]) is x
    assert nnscaler.get_dynamic(x) == {0, 2}
    nnscaler.mark_dynamic(x, 1)
    assert nnscaler.get_dynamic(x) == {1}
    assert nnscaler.get_dynamic(torch.zeros(2)) == set()
    with pytest.raises(InputError, match="the tensor has 3 dimensions, and none is 3"):
        nnscaler.mark_dynamic(x, 3)
    with pytest.raises(InputError, match="expected a tensor, not a int"):
        nnscaler.mark_dynamic(3, 0)


def test_anchor_and_folding_do_nothing_in_eager_mode():
    assert nnscaler.anchor("here") is None
    with pytest.raises(InputError, match="anchor: the name is a int; give a string"):
        nnscaler.anchor(3)
    with nnscaler.constant_folding(), nnscaler.no_constant_folding():
        assert nnscaler.fold_constant([1, "a"]) == [1, "a"]
    with pytest.raises(InputError, match="fold_constant: a tensor is no constant"):
        nnscaler.fold_constant([torch.zeros(1)])
