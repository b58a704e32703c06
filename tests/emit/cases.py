"""Small models, each with something that is hard to print.

`CASES` holds them by name, in float64 and in training mode.
"""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import nnscaler

Sample = tuple[nn.Module, tuple, dict]


@dataclass
class Case:
    """A model and what is special about testing it.

    Attributes:
        make: gives module, args and kwargs.
        dynamic: its dynamic shapes.
        other: arguments of other sizes to run it with.
        tolerance: of the relative difference.
    """

    make: Callable[[], Sample]
    dynamic: Any = None
    other: Callable[[], tuple] | None = None
    tolerance: float = 1e-9


CASES: dict[str, Case] = {}


def case(args: Callable[[], tuple], kwargs: Callable[[], dict] = dict, **special):
    """Registers the class below."""

    def register(cls: type[nn.Module]) -> type[nn.Module]:
        def make() -> Sample:
            torch.manual_seed(0)
            return cls().double().train(), args(), kwargs()

        CASES[cls.__name__] = Case(make, **special)
        return cls

    return register


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def rows() -> tuple:
    return (randn(4, 8),)


Pair = namedtuple("Pair", "a b")


@dataclass
class Result:
    loss: torch.Tensor
    aux: object = None


torch.export.register_dataclass(Result, serialized_type_name="cases.Result")


class Ste(torch.autograd.Function):
    """Rounds; the gradient passes."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Clip(torch.autograd.Function):
    """Passes; the gradient is clipped."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-ctx.limit, ctx.limit), None


@nnscaler.register_op("a b, ?, ? -> a b, a b")
def two(x, ys, k=1):
    return x * k + ys[0], ys[1] - x


@case(rows)
class Twice(nn.Module):
    """A module called twice."""

    def __init__(self):
        super().__init__()
        self.b = Inner()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        y = self.b(x)
        z = self.b(y * 2)
        return self.l(y) + z


class Inner(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.l = nn.Linear(n, n)

    def forward(self, x):
        h = self.l(x)
        return torch.relu(h) + x


@case(lambda: (randn(4, 8), randn(2, 8)))
class TwiceShapes(nn.Module):
    """A module called twice with other sizes: two functions of one class."""

    def __init__(self):
        super().__init__()
        self.b = Shaped()

    def forward(self, x, y):
        return self.b(x).sum() + self.b(y).sum()


class Shaped(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return self.l(x).reshape(x.shape[0], 2, 4).transpose(1, 2)


@case(rows)
class Shared(nn.Module):
    """A parameter and a module used outside of the module that owns them."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(8, 8, bias=False)
        self.a = Uses(self.emb)

    def forward(self, x):
        return self.a(x)


class Uses(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.e = [e]
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return F.linear(self.l(x), self.e[0].weight) + self.e[0](x)


@case(rows)
class CallsOutside(nn.Module):
    """A module that others call, who do not own it."""

    def __init__(self):
        super().__init__()
        self.blk = Inner()
        self.a = CallsOther(self.blk)
        self.b = CallsOther(self.blk)

    def forward(self, x):
        return self.b(self.a(x))


class CallsOther(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.e = [e]
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return self.e[0](self.l(x))


@case(lambda: (torch.randint(0, 12, (2, 5)),))
class TiedHead(nn.Module):
    """A tie between modules."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 8)
        self.head = Head()
        self.head.proj.weight = self.emb.weight

    def forward(self, i):
        return self.head(self.emb(i))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 12)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.proj(self.norm(x))


@case(rows)
class TiedLayers(nn.Module):
    """Ties within a list."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Inner() for _ in range(3))
        for layer in self.layers[1:]:
            layer.l.weight = self.layers[0].l.weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@case(lambda: (randn(4, 3, 8, 8),))
class Norms(nn.Module):
    """Norms with their statistics; in place."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, padding=1, stride=2)
        self.n = nn.BatchNorm2d(4)
        self.m = nn.BatchNorm2d(4, momentum=0.3, affine=False)
        self.k = nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x):
        return self.k(self.m(F.relu(self.n(self.c(x)), inplace=True)))


@case(rows)
class Counter(nn.Module):
    """Buffers that forward writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.long))
        self.register_buffer("avg", torch.zeros(8), persistent=False)

    def forward(self, x):
        self.n += 1
        with torch.no_grad():
            self.avg.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x * self.avg + self.n


@case(rows)
class InPlace(nn.Module):
    """Operators in place, assignments to parts, literals that are written."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        y = self.l(x)
        y.add_(1).mul_(2)
        z = torch.zeros_like(y)
        z[:, 0] = y[:, 1]
        z[1:3, 2:] = 5.0
        z[:, -1].add_(1)
        m = y > 0
        z[m] = 0.5
        idx = torch.tensor([0, 2])
        z[:, idx] = y[:, idx] * 3
        z[idx] += 1
        w = torch.tensor([1.0, 2.0, 3.0, 4.0])
        w[0] = 7
        return z + w.sum().to(y.dtype)


@case(rows)
class SetBuffer(nn.Module):
    """A buffer that forward replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(4, 8))

    def forward(self, x):
        self.h = self.h * 0.5 + x.detach()
        return x * self.h


class NoopNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = x.to(torch.float64).contiguous()
        v = x.pow(2).mean(-1, keepdim=True)
        return self.w * x * torch.rsqrt(v + 1e-06)


@case(rows)
class NoopCasts(nn.Module):
    """Casts that do nothing, whose results an export uses outside of the module."""

    def __init__(self):
        super().__init__()
        self.n = nn.ModuleList(NoopNorm() for _ in range(3))
        self.l = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for n, layer in zip(self.n, self.l, strict=False):
            x = x + layer(n(x))
        return x


@case(rows)
class Regions(nn.Module):
    """no_grad and enable_grad, around calls and within."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = Inner()
        self.c = Inner()

    def forward(self, x):
        with torch.no_grad():
            y = self.b(x)
            with torch.enable_grad():
                z = self.a(x)
            w = y * 2
        with torch.no_grad():
            q = self.c(w)
        return z + w + q


@case(rows)
class Autocast(nn.Module):
    """autocast, and none within it."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        x = x.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = F.linear(x, self.a.weight.float(), self.a.bias.float())
            with torch.autocast("cpu", enabled=False):
                h = F.linear(h.float(), self.b.weight.float())
        return h.float()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.d = nn.Dropout(0.3)

    def forward(self, x, y):
        return self.d(F.gelu(self.l(x))) + y


@case(rows)
class RecomputedModules(nn.Module):
    """Recomputed modules."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        y = x * 2
        for layer in self.layers:
            x = checkpoint(layer, x, y, use_reentrant=False)
        return x


@case(rows)
class RecomputedFunctions(nn.Module):
    """Recomputed functions: one for all layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        for layer in self.layers:

            def f(h, layer=layer):
                h = layer(h, h)
                return h + layer(h, h)

            x = checkpoint(f, x, use_reentrant=False)

        def g(h):
            return F.gelu(self.out(h))

        return checkpoint(g, x, use_reentrant=False)


@case(rows)
class RecomputedSequential(nn.Module):
    """Recomputed parts of a Sequential."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())

    def forward(self, x):
        return checkpoint_sequential(self.net, 2, x, use_reentrant=False)


DYNAMIC = ({0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("t", min=2, max=64)},)


@case(
    lambda: (torch.randint(0, 12, (4, 6)),),
    dynamic=DYNAMIC,
    other=lambda: (torch.randint(0, 12, (3, 7)),),
)
class Dynamic(nn.Module):
    """Sizes that vary."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(12, 8)
        self.layers = nn.ModuleList(DynamicBlock() for _ in range(3))

    def forward(self, i):
        b, t = i.shape
        x = self.e(i) + torch.arange(t, device=i.device)[None, :, None]
        for layer in self.layers:
            x = layer(x)
        return x.reshape(b * t, 8).sum(0)


class DynamicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        b, t, d = x.shape
        h = self.l(x).view(b, t, 2, 4).transpose(1, 2).reshape(b * 2, t, 4)
        m = torch.ones(t, t, dtype=torch.bool).tril()
        a = (h @ h.transpose(1, 2)).masked_fill(~m, float("-inf")).softmax(-1)
        return x + (a @ h).reshape(b, 2, t, 4).transpose(1, 2).reshape(b, t, d)


@case(
    lambda: ({"x": randn(4, 8), "y": [randn(4, 8), randn(8)]},), lambda: dict(scale=2.0, flag=True)
)
class Structures(nn.Module):
    """Structures, constants and defaults among the arguments and results."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, batch, scale=1.0, flag=False, *, mode="a"):
        h = self.l(batch["x"]) + batch["y"][0] * scale
        return {"loss": h.sum(), "parts": (h, [batch["y"][1] * h]), "name": "n", "none": None}


@case(rows)
class DataclassResult(nn.Module):
    """A dataclass as the result."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        h = self.l(x)
        return Result(loss=h.sum(), aux=None)


@case(rows)
class TupleResult(nn.Module):
    """A named tuple and lists."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        h = self.l(x)
        return (Pair(h, x * 2), [h, h], x)


@case(lambda: (randn(4, 8), randn(4, 8)), lambda: dict(z=randn(4, 8)))
class VariableArguments(nn.Module):
    """*args and **kwargs."""

    def forward(self, *xs, **ks):
        return xs[0] * xs[1] + ks["z"]


@case(rows)
class BuiltinNames(nn.Module):
    """Names of parameters that are built in."""

    def forward(self, input, *args, type=None, **kwargs):
        return input * 2


@case(rows)
class SequentialRoot(nn.Sequential):
    """A container as the root."""

    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.ReLU(), Inner(), Inner(), nn.Linear(8, 4))


@case(rows)
class OddNames(nn.Module):
    """Names that are no identifiers, lists in lists, parameters in containers, unused ones."""

    def __init__(self):
        super().__init__()
        self.d = nn.ModuleDict({"a-b": nn.Linear(8, 8), "in": Inner(), "3": nn.Linear(8, 8)})
        self.lst = nn.ModuleList(
            [nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]) for _ in range(2)]
        )
        self.p = nn.ParameterDict(
            {"w-1": nn.Parameter(torch.ones(8)), "class": nn.Parameter(torch.ones(8))}
        )
        self.pl = nn.ParameterList([torch.ones(8), torch.ones(8)])
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.unused = nn.Linear(3, 2)

    def forward(self, x):
        x = self.d["in"](self.d["a-b"](x)) * self.p["w-1"] + self.p["class"] * self.frozen
        for row in self.lst:
            for layer in row:
                x = torch.tanh(layer(x))
        return self.d["3"](x) * self.pl[0] + self.pl[1]


@case(rows)
class Collect(nn.Module):
    """Values of all iterations."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Inner() for _ in range(5))

    def forward(self, x):
        hs = [x]
        for layer in self.layers:
            x = layer(x)
            hs.append(x)
        return (x, tuple(hs), torch.stack(hs[1:]).sum(), hs[2])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Router() for _ in range(4))

    def forward(self, x):
        rs = []
        for layer in self.layers:
            x, r = layer(x)
            rs.append(r)
        return (x, rs)


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.r = nn.Linear(8, 2)

    def forward(self, x):
        r = self.r(x)
        return (self.l(x) * r.softmax(-1)[:, :1], r)


@case(rows)
class Routers(nn.Module):
    """A list that a module hands out, and loops over it."""

    def __init__(self):
        super().__init__()
        self.enc = Encoder()

    def forward(self, x):
        x, rs = self.enc(x)
        c = torch.cat([r.to(x.device) for r in rs], 0)
        tot = 0
        for r in rs:
            tot = tot + r.pow(2).mean()
        return x.sum() + c.sum() + tot


@case(lambda: (randn(2, 4, 16),))
class UNet(nn.Module):
    """Values of all iterations, read in reverse."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=1) for _ in range(3))
        self.up = nn.ModuleList(nn.Conv1d(8, 4, 3, padding=1) for _ in range(3))

    def forward(self, x):
        sk = []
        for d in self.down:
            x = F.relu(d(x))
            sk.append(x)
            x = F.avg_pool1d(x, 2)
        for u in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = u(torch.cat([x, sk.pop()], 1))
        return x


@case(rows)
class Dense(nn.Module):
    """Inputs that grow: no loop."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(nn.Linear(8 * (i + 1), 8) for i in range(4))

    def forward(self, x):
        fs = [x]
        for layer in self.ls:
            fs.append(F.relu(layer(torch.cat(fs, 1))))
        return torch.cat(fs, 1)


@case(rows)
class Repeat(nn.Module):
    """One module, again and again."""

    def __init__(self):
        super().__init__()
        self.l = Inner()

    def forward(self, x):
        for _ in range(6):
            x = self.l(x)
        return x


@case(rows)
class OldValues(nn.Module):
    """Two lists; a value of the iteration before, read after the new one is made."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.ms = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        y = x
        for layer, m in zip(self.ls, self.ms, strict=False):
            n = torch.tanh(layer(x))
            y = m(y) + x * n
            x = n
        return x + y


@case(rows)
class TwoCarried(nn.Module):
    """Two values handed on."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, x):
        a, b = (x, x * 2)
        for layer in self.ls:
            a, b = (b, torch.tanh(a + layer(b)))
        return a - b


@case(rows)
class Offsets(nn.Module):
    """A part of a list."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        x = self.ls[0](x).sin()
        for i in range(1, 5):
            x = torch.tanh(self.ls[i](x))
        return self.ls[5](x)


@case(rows)
class Alternate(nn.Module):
    """A loop over two classes in turn."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(Inner() if i % 2 else Block() for i in range(6))

    def forward(self, x):
        for i, layer in enumerate(self.ls):
            x = layer(x) if i % 2 else layer(x, x)
        return x


@case(rows)
class Recursion(nn.Module):
    """A module that calls itself."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x, n=3):
        x = torch.tanh(self.l(x))
        return x if n == 0 else self(x, n - 1)


@case(lambda: (randn(2, 5, 8),))
class TorchModules(nn.Module):
    """Modules of torch.nn that become classes."""

    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(8, 2, batch_first=True)
        self.b = nn.MultiheadAttention(8, 2, batch_first=True)
        self.e = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3, enable_nested_tensor=False
        )

    def forward(self, x):
        y, _ = self.a(x, x, x)
        y, w = self.b(y, y, y)
        return (self.e(y), w)


@case(lambda: (randn(2, 5, 8),))
class Recurrent(nn.Module):
    """Recurrent networks."""

    def __init__(self):
        super().__init__()
        self.a = nn.LSTM(8, 6, 2, batch_first=True, dropout=0.2)
        self.b = nn.GRU(6, 4)

    def forward(self, x):
        y, (h, c) = self.a(x)
        z, _ = self.b(y)
        return (z, h, c)


@case(rows)
class LeafFunctions(nn.Module):
    """Functions kept whole."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.one = nn.Linear(8, 8)

    def forward(self, x):
        x = Ste.apply(self.one(x) * 3)
        for layer in self.ls:
            x = Clip.apply(layer(x), 0.5)
        a, b = two(x, (x, x * 2), k=3)
        return a + b


class Names(nn.Module):
    """A parameter of forward with a name that generated code needs."""

    def forward(self, F):
        return F * 2


@case(lambda: (randn(4, 8), torch.tensor(3)))
class Scalars(nn.Module):
    """Arithmetic, comparisons, results with names."""

    def forward(self, x, n):
        y = 2 ** x.abs()
        z = x ** (-2)
        w = 1 - x
        v = -x
        u = x.pow(3.0)
        t = x // 0.5
        r = x % 0.3
        q = (x > 0) & (x < 1) | ~(x > -1)
        f = torch.where(q, x, 0.0)
        g = x.masked_fill(q, float("-inf")).softmax(-1)
        c = torch.complex(x, x).abs()
        k = (n * 2 + 1).float()
        i = x.argmax(-1)
        o = F.one_hot(i, 8)
        s_ = x.sort(-1)
        m = x.max(-1)
        tk = torch.topk(x, 2)
        return (
            y
            + z
            + w
            + v
            + u
            + t
            + r
            + f
            + g
            + c
            + k
            + o
            + s_.values
            + m.values[:, None]
            + tk[0].sum(),
            i,
            m.indices,
            s_[1],
        )


@case(lambda: (randn(4, 8, 6),))
class Shapes(nn.Module):
    """Views, parts, indices, shapes."""

    def forward(self, x):
        a = x[:, 1:3]
        b = x[..., ::2]
        c = x[1]
        d = x[:, -1]
        e = x[:, :, None]
        f = x[0, 1:, 2]
        g = x.permute(2, 0, 1)
        h = x.flatten(1)
        i = x.unfold(1, 3, 2)
        j = x.chunk(3, 1)
        k = x.split([1, 2, 5], 1)
        layer = x.unbind(1)
        m = x.T if False else x.mT
        n = x.repeat(1, 2, 1)
        o = x.expand(2, 4, 8, 6)
        p = torch.stack(layer, 0)
        q = x[torch.tensor([0, 1])][:, torch.tensor([2, 3])]
        r = x.roll(1, 0)
        t = x.movedim(0, 1)
        u = x.view(-1).view(4, 48)
        v = x.squeeze()
        w = x.new_zeros(3, 2)
        y = x[:, torch.tensor([1, 2]), :, None]
        z = torch.einsum("abc,adc->bd", x, x)
        aa = x.select(1, 2)
        bb = x.narrow(1, 0, 2)
        cc = x.tile((2, 1))
        dd = x.flip(0)
        ee = F.pad(x, (1, 1), mode="reflect")
        ff = x.new_full((2,), 3.0)
        gg = torch.tril(x)
        hh = x.diagonal()
        ii = x.gather(1, torch.zeros(4, 2, 6, dtype=torch.long))
        jj = torch.zeros(4, 8, 6, dtype=x.dtype).scatter(
            1, torch.zeros(4, 2, 6, dtype=torch.long), x
        )
        kk = x.std(-1)
        ll = x.var(1, unbiased=False)
        mm = torch.std_mean(x)
        return [
            t_.sum()
            for t_ in (
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                h,
                i,
                j[1],
                k[2],
                layer[3],
                m,
                n,
                o,
                p,
                q,
                r,
                t,
                u,
                v,
                w,
                y,
                z,
                aa,
                bb,
                cc,
                dd,
                ee,
                ff,
                gg,
                hh,
                ii,
                jj,
                kk,
                ll,
                mm[0],
            )
        ]


@case(lambda: (randn(4, 5), torch.randint(0, 5, (4,)), randn(4, 5).sigmoid()))
class Losses(nn.Module):
    """Losses, each reduction written out."""

    def forward(self, x, t, p):
        q = torch.sigmoid(x)
        return (
            F.cross_entropy(x, t, label_smoothing=0.1)
            + F.cross_entropy(x, t, ignore_index=2, reduction="sum")
            + F.nll_loss(x.log_softmax(-1), t)
            + F.mse_loss(x, p)
            + F.l1_loss(x, p, reduction="sum")
            + F.kl_div(x.log_softmax(-1), p)
            + F.kl_div(x, p, reduction="batchmean")
            + F.binary_cross_entropy(q, p)
            + F.binary_cross_entropy_with_logits(x, p, pos_weight=p[0])
            + F.smooth_l1_loss(x, p, beta=0.5)
            + F.huber_loss(x, p)
            + F.cosine_embedding_loss(x, p, torch.ones(4))
            + F.triplet_margin_loss(x, p, q)
            + F.margin_ranking_loss(x, p, torch.sign(x))
            + F.hinge_embedding_loss(x, torch.sign(p - 0.5))
            + F.soft_margin_loss(x, torch.sign(p - 0.5))
            + F.multi_margin_loss(x, t)
            + F.poisson_nll_loss(x, p)
            + F.cross_entropy(x, t, weight=p[0], reduction="none").sum()
        )


@case(lambda: (randn(2, 3, 8, 8),))
class Images(nn.Module):
    """Convolutions, pools, interpolation, activations."""

    def __init__(self):
        super().__init__()
        self.t = nn.ConvTranspose2d(3, 4, 2, 2)
        self.g = nn.GroupNorm(2, 4)
        self.p = nn.PReLU()
        self.i = nn.InstanceNorm2d(4, affine=True)

    def forward(self, x):
        y = self.i(self.p(self.g(self.t(x))))
        a = F.interpolate(y, size=(8, 8), mode="bilinear", align_corners=False)
        b = F.max_pool2d(y, 2)
        c = F.adaptive_avg_pool2d(y, (2, 2))
        d = F.avg_pool2d(y, 3, 2, 1, count_include_pad=False)
        e = F.pixel_shuffle(y, 2)
        f = F.unfold(y, 3, padding=1)
        g = F.interpolate(y, scale_factor=2.0)
        h, idx = F.max_pool2d(y, 2, return_indices=True)
        i = F.grid_sample(y, torch.zeros(2, 3, 3, 2, dtype=y.dtype), align_corners=False)
        j = F.adaptive_max_pool2d(y, 2)
        k = F.conv2d(x, torch.ones(2, 3, 3, 3, dtype=x.dtype), padding="same")
        layer = F.interpolate(y, size=(5, 5), mode="bicubic", align_corners=True)
        m = F.glu(y, 1)
        n = F.hardtanh(y)
        o = F.leaky_relu(y, 0.2)
        q = F.elu(y)
        r = F.softplus(y)
        s_ = F.mish(y)
        t = F.logsigmoid(y)
        u = F.hardswish(y)
        v = F.selu(y)
        w = F.celu(y)
        z = F.relu6(y)
        aa = F.silu(y)
        bb = F.normalize(y)
        cc = F.local_response_norm(y, 2)
        dd = F.softmin(y, 1)
        ee = F.threshold(y, 0.1, 0.2)
        ff = F.dropout2d(y, 0.2, self.training)
        gg = F.alpha_dropout(y, 0.2, self.training)
        hh = F.softsign(y)
        ii = F.tanhshrink(y)
        jj = F.gumbel_softmax(y, dim=1)
        kk = F.rrelu(y, training=self.training)
        return (
            sum(
                t_.sum()
                for t_ in (
                    a,
                    b,
                    c,
                    d,
                    e,
                    f,
                    g,
                    h,
                    i,
                    j,
                    k,
                    layer,
                    m,
                    n,
                    o,
                    q,
                    r,
                    s_,
                    t,
                    u,
                    v,
                    w,
                    z,
                    aa,
                    bb,
                    cc,
                    dd,
                    ee,
                    ff,
                    gg,
                    hh,
                    ii,
                    jj,
                    kk,
                )
            ),
            idx,
        )


class Args(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.l = nn.Linear(d, d * k)
        self.m = nn.Linear(d * k, d)
        self.k = k
        self.scale = 1.0 / (k + 1)
        self.in_ = Sub(k)

    def forward(self, x):
        return (
            self.in_(self.m(F.gelu(self.l(x)) * self.scale))
            .view(-1, self.k, x.shape[-1] // self.k)
            .sum(1)
        )


class Sub(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        return x * self.k + 0.5


@case(rows)
class ConstructorArguments(nn.Module):
    """Numbers that differ: arguments of constructors."""

    def __init__(self):
        super().__init__()
        self.a = nn.ModuleList(Args(8, k) for k in (1, 2, 4))
        self.b = Args(8, 2)
        self.c = nn.ModuleList(Sub(i) for i in range(5))

    def forward(self, x):
        y = sum(layer(x).sum() for layer in self.a) + self.b(x).sum()
        for layer in self.c:
            x = layer(x)
        return x + y


@case(rows)
class Literals(nn.Module):
    """Literals, small and large."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(LiteralLayer(i) for i in range(3))
        self.big = randn(40, 8)

    def forward(self, x):
        for layer in self.ls:
            x = layer(x)
        return (
            x
            + self.big[:4]
            + torch.tensor(1e-07)
            + torch.tensor([[True, False]]).sum()
            + torch.tensor(3.14, dtype=torch.float16)
        )


class LiteralLayer(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.i = i

    def forward(self, x):
        return x * torch.tensor([1.0, 2.0])[self.i % 2] + torch.tensor([0.1 * self.i] * 8)


@case(rows)
class Unpack(nn.Module):
    """Results of which some are used."""

    def __init__(self):
        super().__init__()
        self.a = Multi()
        self.b = Multi()

    def forward(self, x):
        p, q, r = self.a(x)
        u, v, w = self.b(p)
        return q + v + w


class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 24)

    def forward(self, x):
        a, b, c = self.l(x).chunk(3, -1)
        return (a, b * 2, c)


@case(lambda: (randn(9, 8),))
class ManyParts(nn.Module):
    """Loops over the parts of a tensor."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(nn.Linear(8, 8) for _ in range(9))

    def forward(self, x):
        out = []
        for t, layer in zip(x.unbind(0), self.ls, strict=False):
            out.append(torch.tanh(layer(t)))
        return torch.stack(out)


@case(rows)
class OtherEvaluation(nn.Module):
    """Another program in evaluation."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        if self.training:
            x = x + torch.randn_like(x)
        return self.l(x)


class Stage(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.blocks = nn.ModuleList(Inner() for _ in range(n))

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return x


@case(rows)
class NestedLists(nn.Module):
    """Lists in lists: a loop in a loop."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(Stage(n) for n in (2, 2, 3))
        self.flat = nn.ModuleList([nn.ModuleList([Inner() for _ in range(3)]) for _ in range(4)])

    def forward(self, x):
        for st in self.stages:
            x = st(x)
        for row in self.flat:
            for b in row:
                x = b(x)
            x = x.sin()
        return x


@case(rows)
class AlternatingMasks(nn.Module):
    """Layers that alternate in what they are given."""

    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList(MaskedBlock(i) for i in range(6))

    def forward(self, x):
        m1 = torch.ones(4, 4, dtype=torch.bool).tril()
        m2 = m1.flip(0)
        for i, layer in enumerate(self.ls):
            x = layer(x, m1 if i % 3 else m2)
        return x


class MaskedBlock(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x, m):
        return torch.tanh(x + (x @ x.T).masked_fill(~m, 0.0) @ self.l(x))


@case(rows)
class UserSequentials(nn.Module):
    """Containers of the user's."""

    def __init__(self):
        super().__init__()
        self.a = DoublingSequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.b = nn.Sequential(
            OrderedDict(
                x=nn.Linear(8, 8), y=DoublingSequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
            )
        )
        self.c = nn.Sequential(*[Inner() for _ in range(4)])

    def forward(self, x):
        return self.c(self.b(self.a(x)))


class DoublingSequential(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * 2


@torch.library.custom_op("cases::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, gradient: gradient * 2)


@case(rows)
class LibraryOperator(nn.Module):
    """An operator that the model's module defines."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return twice(self.l(x))
