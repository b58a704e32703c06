"""Small models of what users run into: each function returns (module, args, kwargs)."""

from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import nnscaler

Sample = tuple[nn.Module, tuple, dict]

# --- Values of tensors decide ---


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        y = self.l(x)
        if y.abs().max() > 3:
            y = y / 2
        return y.sum()


def gate() -> Sample:
    return Gate(), (torch.randn(4, 8),), {}


class Moe(nn.Module):
    """A mixture of experts; loops over those that were hit, which cannot be exported."""

    def __init__(self, experts: int = 4, dim: int = 8) -> None:
        super().__init__()
        self.r = nn.Linear(dim, experts)
        self.e = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))

    def forward(self, x):
        i = self.r(x).argmax(-1)
        out = torch.zeros_like(x)
        for k in torch.bincount(i, minlength=len(self.e)).nonzero().flatten():
            t = (i == k).nonzero().flatten()
            out = out.index_add(0, t, self.e[k](x[t]))
        return out.sum()


class SparseMoe(Moe):
    """Each expert takes the rows that chose it: sizes depend on data."""

    def forward(self, x):
        i = self.r(x).argmax(-1)
        out = torch.zeros_like(x)
        for k, e in enumerate(self.e):
            t = (i == k).nonzero().flatten()
            out = out.index_add(0, t, e(x[t]))
        return out.sum()


class DenseMoe(Moe):
    """Each expert takes all rows."""

    def forward(self, x):
        i = self.r(x).argmax(-1)
        return sum(torch.where((i == k)[:, None], e(x), 0.0) for k, e in enumerate(self.e)).sum()


def moe(cls: type[Moe] = Moe, batch: int = 16) -> Sample:
    return cls(), (torch.randn(batch, 8),), {}


# --- Custom backward passes and registered functions ---


class Ste(torch.autograd.Function):
    """Rounds; the gradient passes as if it did not."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class RoundTo(torch.autograd.Function):
    """Two results, one without a gradient, and an argument that is no tensor."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.step = step
        rounded = (x / step).round() * step
        index = (rounded / step).long()
        ctx.mark_non_differentiable(index)
        return rounded, index

    @staticmethod
    def backward(ctx, g, _):
        return g * 2, None


round_to = RoundTo.apply  # bound long before an export


class Quant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return Ste.apply(self.l(x) * 4).sum()


class QuantTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        y, index = checkpoint(self.inner, x, use_reentrant=False)
        return y.square().sum() + (index * 0).sum()

    def inner(self, x):
        return round_to(self.l(x), 0.5)


def quant(cls: type[nn.Module] = Quant, batch: int = 4) -> Sample:
    return cls(), (torch.randn(batch, 8),), {}


@nnscaler.register_op("b d, d -> b d")
def scaled(x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    return x * w / (1 + eps)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return scaled(self.l(x), w=self.w).square().mean()


@nnscaler.register_op("a b -> a b")  # wrong: it normalizes over b
def wrong_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@nnscaler.register_op("a k+, k+ b -> a b")  # wrong: the 1 is added once a shard
def wrong_affine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w + 1.0


# --- Recomputation ---


class Block(nn.Module):
    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.u = nn.Linear(dim, 4 * dim)
        self.d = nn.Linear(4 * dim, dim)
        self.p = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.p(self.d(F.gelu(self.u(x))))


class Checkpointed(nn.Module):
    """Blocks under torch.utils.checkpoint: one region each, or two of `checkpoint_sequential`."""

    def __init__(self, how: str, dim: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.b = nn.ModuleList(Block(dim, dropout) for _ in range(3))
        self.how = how

    def forward(self, x):
        if self.how == "sequential":
            x = checkpoint_sequential(list(self.b), 2, x, use_reentrant=False)
        else:
            for b in self.b:
                x = checkpoint(b, x, use_reentrant=self.how == "reentrant")
        return x.square().mean()


def checkpointed(how: str = "plain", dropout: float = 0.0, batch: int = 4) -> Sample:
    return Checkpointed(how, dropout=dropout), (torch.randn(batch, 16),), {}


# --- Regions, modes, shapes ---


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.a(x)
        with torch.no_grad():
            scale = h.float().abs().amax()
        return (self.b(h.float()) / scale).sum()


def autocast(batch: int = 4) -> Sample:
    return Autocast(), (torch.randn(batch, 8),), {}


class Drop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.bn = nn.BatchNorm1d(8)
        self.d = nn.Dropout(0.5)

    def forward(self, x):
        return self.d(self.bn(self.l(x)))


def drop(batch: int = 4) -> Sample:
    return Drop(), (torch.randn(batch, 8),), {}


class Reshaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return self.l(x).view(x.shape[0], 2, 4).sum(-1)


def reshaped(batch: int = 4) -> Sample:
    return Reshaped(), (torch.randn(batch, 8),), {}


# --- Ties, structures, literals, buffers ---


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, i):
        return F.cross_entropy(self.head(self.emb(i)).flatten(0, 1), i.flatten())


def tied(batch: int = 2) -> Sample:
    return Tied(), (torch.randint(0, 12, (batch, 5)),), {}


@dataclass
class Out:
    loss: torch.Tensor
    n: torch.Tensor
    extra: torch.Tensor | None = None


Pair = namedtuple("Pair", ["loss", "n"])


class Head(nn.Module):
    """Takes a dict; returns what it is told to: a dataclass, a dict, a namedtuple, a nesting."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.kind = kind

    def forward(self, b):
        loss, n = self.l(b["x"]).square().sum(), b["mask"].sum()
        if self.kind == "dataclass":
            return Out(loss, n)
        if self.kind == "dict":
            return {"loss": loss, "n": n}
        if self.kind == "namedtuple":
            return Pair(loss, n)
        return [loss, (n, None, 3), {"name": "head"}]


def head(kind: str = "dataclass", batch: int = 4) -> Sample:
    return Head(kind), ({"x": torch.randn(batch, 8), "mask": torch.ones(batch)},), {}


class Literal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return (self.l(x) * torch.tensor([0.5, 2.0]).repeat(4)).sum()


def literal(batch: int = 4) -> Sample:
    return Literal(), (torch.randn(batch, 8),), {}


class Rope(nn.Module):
    """A table that is not in the state dict."""

    def __init__(self, length: int = 16, dim: int = 8) -> None:
        super().__init__()
        self.l = nn.Linear(dim, dim)
        table = torch.cos(torch.arange(length)[:, None] * torch.ones(dim))
        self.register_buffer("cos", table, persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        return (self.l(x) * self.cos[: x.shape[1]]).square().mean()


def rope(batch: int = 2) -> Sample:
    return Rope(), (torch.randn(batch, 8, 8),), {}
