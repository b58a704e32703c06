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


# --- Models of a line: parts by name, and what is done with them ---


class Net(nn.Module):
    """Its parts are given by name."""

    def __init__(self, **parts) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Fused(Net):
    """Query, key and value from one weight."""

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, 4, d // 4).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class InferredView(Net):
    def forward(self, x):
        return self.q(x).view(x.shape[0], -1, 4, 4).transpose(1, 2).square().mean()


class Grouped(Net):
    """Eight heads, two of keys and values."""

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 8, 4).transpose(1, 2)
        k = self.k(x).view(b, t, 2, 4).transpose(1, 2)
        v = self.v(x).view(b, t, 2, 4).transpose(1, 2)
        if not self.native:
            k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.native)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Feed(Net):
    def forward(self, x):
        return self.d(self.u(x).relu()).square().mean()


class Scatter(Net):
    def forward(self, x, i):
        h = self.l(x)
        buf = h.new_zeros(16, 8)
        buf[i] = h
        return (buf * torch.arange(16.0)[:, None]).square().sum() + x[i % 4].sum()


class Ignoring(Net):
    def forward(self, i, y):
        z = self.h(self.e(i)).flatten(0, 1)
        return F.cross_entropy(z, y.flatten(), ignore_index=-100)


class InPlace(Net):
    def forward(self, x, k):
        h = self.l(x)
        h.masked_fill_(k, 0.0)
        h[:, 0] = 1.0
        n = torch.norm(h, p=2, dim=0)
        return (n + h[0].detach()).sum()


class Bn(Net):
    def forward(self, x):
        return self.bn(self.c(x)).relu().square().mean()


class Aux(Net):
    """A dense mixture of experts whose loss has a product of two means over tokens."""

    def forward(self, x):
        p = self.r(x).softmax(-1)
        oh = F.one_hot(p.argmax(-1), p.shape[-1]).to(x.dtype)
        aux = p.shape[-1] * (oh.mean(0) * p.mean(0)).sum()
        h = torch.einsum("td,ndf->tnf", x, self.w1).relu()
        y = torch.einsum("tnf,nfd,tn->td", h, self.w2, oh * p)
        return y.square().mean() + 0.01 * aux


class Mha(Net):
    def forward(self, x, kv):
        def heads(z):
            return z.unflatten(-1, (4, -1)).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(kv)), heads(self.v(kv))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2, 3))


class Rare(Net):
    def forward(self, x):
        h = self.l(x)
        det = torch.linalg.slogdet(h @ h.t() + torch.eye(4)).logabsdet
        return torch.diagonal(h).sum() + det + h.unfold(1, 2, 2).amax()


class Mlp(Net):
    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Attention(Net):
    def forward(self, x):
        return self.o(F.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ self.v(x))


class DecoderLayer(Net):
    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


class Decoder(Net):
    def forward(self, i):
        x = self.embed(i)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), i.flatten())


class TwoReaders(Net):
    def forward(self, x):
        return ((x @ self.w).relu() @ self.w + self.b(x)).square().mean()


class Strided(Net):
    def forward(self, x):
        h = self.l(x)
        strided = torch.as_strided(h, (2, 12), (36, 1))
        return self.o(h.view(h.shape[0], -1)).square().mean() + strided.sum()


class Mix(Net):
    def forward(self, x):
        return (self.d(F.gelu(self.u(self.n(x)))) * self.t).square().mean()


class Unused(Net):
    """Parameters that nothing reads."""

    def forward(self, x):
        return self.a(x).square().sum()


class Sequenced(Net):
    """Norms whose rows may be split."""

    def forward(self, x):
        return self.f(x + self.l(self.n(x))).cumsum(-1).square().mean()


class Lookup(Net):
    """Class indices through an embedding, and what comes after it."""

    def forward(self, i):
        return F.cross_entropy(self.h(self.e(i)).flatten(0, 1), i.flatten())


class Counting(nn.Module):
    """A tie, a module in a dict, and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(12, 8)
        self.blk = nn.ModuleDict({"0": nn.Linear(8, 8)})
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("cnt", torch.zeros((), dtype=torch.long))

    def forward(self, i):
        self.cnt += 1
        return F.cross_entropy(self.head(self.blk["0"](self.emb(i))).flatten(0, 1), i.flatten())


class Residual(Net):
    def forward(self, x):
        return x + self.d(F.gelu(self.u(self.n(x))))


class Deep(Net):
    def forward(self, x):
        for layer in self.ls:
            x = layer(x)
        return self.h(x).logsumexp(-1).mean()


class Chain(Net):
    def forward(self, x):
        for layer in self.ls:
            x = layer(x).relu()
        return x.square().mean()


class Side(Net):
    """Equal layers side by side: many plans cost the same."""

    def forward(self, x):
        return sum(layer(x) for layer in self.ls).square().mean()


@nnscaler.register_op("c e^, e^ m^ -> c m^")
def gate_of(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1)


@nnscaler.register_op("(e c) d, (e c) k^ -> e c d")
def dispatch(x: torch.Tensor, scores: torch.Tensor, *, experts: int) -> torch.Tensor:
    return (x * scores.amax(-1, keepdim=True)).view(experts, -1, x.shape[-1])


class Routed(Net):
    def forward(self, x):
        return (dispatch(x, gate_of(self.l(x), self.w), experts=4) ** 2).sum()
