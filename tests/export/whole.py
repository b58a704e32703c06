"""Functions that stay whole, for test_export_leaves.py."""

import torch

from nnscaler import register_op
from user_cases import Ste


class Setup(torch.autograd.Function):
    @staticmethod
    def forward(x, k=2, flag=None):
        return x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g, None, None


@register_op("a b, ?, b -> a b")
def biased(x: torch.Tensor, mode: str = "sum", w: torch.Tensor | None = None) -> torch.Tensor:
    return x + w


@register_op(lambda xs, factor=1.0: f"? -> {', '.join(['a b'] * sum(x is not None for x in xs))}")
def scale_all(xs, factor=1.0):
    return [x * factor for x in xs if x is not None]


@register_op(lambda *xs, scale: ", ".join(["a b"] * len(xs)) + " -> a b")
def add_all(*xs, scale):
    return sum(xs) * scale


@register_op("a b -> a b", fake_fn=lambda x: torch.empty_like(x))
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


@register_op("a b -> ")
def note(x) -> None:
    pass


@register_op("a b -> a b")
def add_one_(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


@register_op("? -> n^")
def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n)


@torch.jit.script
def scripted(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k


register_op("a b, ? -> a b")(scripted)


def _compiled(x):
    return x.sin() + 1


compiled = torch.compile(_compiled)
compiled.__qualname__ = compiled.__name__ = "compiled"
register_op("a b -> a b")(compiled)


@register_op("a^ -> b^")
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@register_op("a^ b^ -> 1")
def count_positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum().reshape(1)


@register_op("a b -> a b")
def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(Ste.apply(x))


@register_op("a b -> a b")
def inner(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@register_op("a b -> ?")
def shape_of(x):
    return tuple(x.shape)


@register_op("a b -> a b")
def as_dict(x):
    return {"x": x}


@register_op("a b -> a b")
def twice(x):
    return x, x


@register_op(lambda x: None)
def wrong_annotation(x):
    return x


@register_op("a b -> a b")
def needs_values(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x
