"""Writes the archives in tests/graph/data, which the C++ tests read; run it to make them again.

What no reader looks at (sample inputs, weights) is left out, and paths of this machine are replaced.
"""

import io
import json
import os
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export, save

HERE = Path(__file__).resolve().parent
PACKAGES = os.path.dirname(os.path.dirname(torch.__file__))


def write(name, program, extra=None, compression=zipfile.ZIP_STORED, keep_weights=False):
    buffer = io.BytesIO()
    save(program, buffer, extra_files={"nnscaler.json": json.dumps(extra)} if extra else None)
    with (
        zipfile.ZipFile(buffer) as source,
        zipfile.ZipFile(HERE / "data" / f"{name}.pt2", "w", compression) as target,
    ):
        for entry in source.namelist():
            if "/.data/" in entry or "/sample_inputs/" in entry:
                continue
            if "/data/weights/" in entry and not keep_weights:
                continue
            data = source.read(entry)
            if entry.endswith("/models/model.json"):
                text = data.decode().replace(PACKAGES, "/env/site-packages")
                text = text.replace(str(HERE / "make_archives.py"), "/home/user/model.py")
                data = text.encode()
            top, _, rest = entry.partition("/")
            target.writestr(zipfile.ZipInfo(f"{name}/{rest}"), data, compression)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, scale=2.0):
        with torch.no_grad():
            y = x * scale
            with torch.autocast("cpu", torch.bfloat16):
                z = self.fc(y)
            y = y + z
        a, b = torch.split(y, 4, -1)
        return self.drop(self.fc(torch.cat([a, b], -1))) + torch.tensor([1.5] * 8), y


class Features(nn.Module):
    """Regions in regions, in-place writes, dynamic sizes, constants, a module called twice."""

    def __init__(self):
        super().__init__()
        self.subs = nn.ModuleList(Sub() for _ in range(2))
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("table", torch.arange(8.0), persistent=False)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x, scale, flag, extra=None, *, mask=None):
        with torch.no_grad():
            self.steps.add_(1)
        for sub in self.subs:
            x, y = sub(x)
        x = self.subs[0](x)[0]
        x = self.norm(x) + self.table
        x[:, 0] = 0
        with torch.autocast("cpu", torch.bfloat16):
            x = x @ x.t()
        h = x.view(x.shape[0] * 2, -1)
        unused = torch.relu(h)  # noqa: F841
        largest, _ = torch.max(h, 0)
        x = x.masked_fill(mask, float("-inf"))
        return {"loss": x.sum() * scale, "all": [h, largest, extra["k"], None, 3], "y": y}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return x + torch.relu(self.fc(x))


class Layers(nn.Module):
    """Equal layers, equal blocks of a layer and an operator, one module called again and again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.scaled = nn.ModuleList(Layer() for _ in range(3))
        self.again = Layer()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for layer in self.scaled:
            x = layer(x) * 2
        for _ in range(3):
            x = self.again(x)
        return x


class Gradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4))
        self.frozen = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        plain = x * self.frozen
        trained = x * self.w
        cut = trained.detach() + 1
        whole = torch.zeros(4, 4)
        before = whole + 1
        row = whole[0]
        row.copy_(trained[1])
        after = whole + 1
        with torch.no_grad():
            quiet = trained * 2
            self.seen.add_(trained.sum(0))
            with torch.enable_grad():
                loud = trained * 3
        index = trained.argmax(-1)
        like = torch.zeros_like(trained) + 1
        cast = trained.to(torch.float64)
        return plain, cut, before, after, quiet, loud, index, like, cast, self.seen + 1


class Literals(nn.Module):
    """Constants whose storages are larger than they are, or that are expanded or too large."""

    def forward(self, x):
        base = torch.arange(24, dtype=torch.int32).view(4, 6)
        return (
            x + self.transposed,
            x[0] + self.row,
            x + self.expanded,
            x.sum() + self.large.sum(),
            x.sum() + torch.tensor(0.5, dtype=torch.bfloat16) + self.empty.sum() + base.sum(),
        )

    def __init__(self):
        super().__init__()
        base = torch.arange(24, dtype=torch.int32).view(4, 6)
        self.transposed = base.t()
        self.row = base[2, 1:5]
        self.expanded = torch.tensor([7], dtype=torch.int64).expand(6, 4)
        self.large = torch.zeros(20000)
        self.empty = torch.zeros(0, 3)


@torch.library.custom_op("nnscaler_leaf::pkg_ops__scale", mutates_args=())
def scale(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x + y + z


@scale.register_fake
def _(x, y, z):
    return torch.empty_like(x)


@torch.library.custom_op("nnscaler_leaf::pkg_ops__Norm_apply", mutates_args=())
def norm(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.clone(), x.sum(-1)


@norm.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x[..., 0])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        h = torch.ops.nnscaler_leaf.pkg_ops__scale(self.fc(x), x, x)
        with torch.no_grad():
            seen = h * 2
        return F.dropout(h + seen, 0.1, self.training)


class Extra(nn.Module):
    """What extra/nnscaler.json describes: leaf functions, ties, recomputation, evaluation."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("cache", torch.zeros(3))

    def forward(self, tokens, labels, reduction):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        x, _ = torch.ops.nnscaler_leaf.pkg_ops__Norm_apply(x)
        torch.ops.nnscaler_leaf.pkg_ops__Norm_apply(x)
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, 10), labels.view(-1), reduction=reduction), logits


EXTRA = {
    "format": 1,
    "nnscaler": "0.1.0",
    "torch": "2.13.0",
    "training": True,
    "module_class": "pkg.model.Extra",
    "ties": [["embed.weight", "head.weight"]],
    "parameters": {"blocks.0.fc.bias": {"requires_grad": False}},
    "buffers": {"cache": {"persistent": False}},
    "recompute": [
        {
            "module": "blocks.1",
            "preserve_rng_state": False,
            "nodes": ["linear_1", "pkg_ops__scale_1", "mul_1", "add_1", "dropout_1"],
        }
    ],
    "leaves": [
        {
            "target": "nnscaler_leaf.pkg_ops__scale.default",
            "signature": "pkg.ops.scale",
            "module": "pkg.ops",
            "qualname": "scale",
            "autograd_function": False,
            "annotation": "a b h, ? -> a b h",
            "annotations": {"pkg_ops__scale_2": "a b h^, ? -> a b h^"},
            "arguments": {
                f"pkg_ops__scale{suffix}": [
                    {"name": "x", "keyword": False, "tensor": 0},
                    {"name": "others", "keyword": False, "tensors": [1, None, 2], "type": "tuple"},
                    {"name": "eps", "keyword": True, "literal": "1e-06"},
                    {"name": "dtype", "keyword": True, "literal": "torch.float32"},
                ]
                for suffix in ("", "_1", "_2")
            },
        },
        {
            "target": "nnscaler_leaf.pkg_ops__Norm_apply.default",
            "signature": "pkg.ops.Norm.apply",
            "module": "pkg.ops",
            "qualname": "Norm.apply",
            "autograd_function": True,
            "annotation": None,
            # A call goes by its first output or by its node.
            "arguments": {
                "getitem_5": [{"name": "x", "keyword": False, "tensor": 0}],
                "pkg_ops__norm_apply_1": [{"name": "x", "keyword": False, "tensor": 0}],
            },
        },
    ],
    "forward": {
        "parameters": [
            {"name": "tokens", "kind": "positional", "tree": {"leaf": 0}},
            {"name": "labels", "kind": "positional", "default": "None", "tree": {"leaf": 1}},
            {"name": "reduction", "kind": "keyword", "tree": {"literal": '"mean"'}},
            {"name": "cache", "kind": "keyword", "default": "None"},
        ],
        "output": {
            "object": "pkg.model.Output",
            "fields": [["loss", {"leaf": 0}], ["logits", {"leaf": 1}]],
        },
    },
    "eval": {"mode": "flags", "reason": "", "training_only": ["dropout"]},
    "anchors": [{"name": "begin", "after": ""}, {"name": "head", "after": "pkg_ops__norm_apply_1"}],
    "symbols": {},
}


class Condition(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * 2, (x,))


class DataDependent(nn.Module):
    def forward(self, x, n):
        count = x.sum().to(torch.int64).item()
        torch._check(count >= 2)
        torch._check(count < 100)
        return torch.ones(count) + n, torch.sym_max(x.shape[0], 4), x * (x.shape[0] ** 0.5)


def main():
    torch.manual_seed(0)
    mlp = export(MLP(), (torch.randn(4, 8),), strict=False)
    write("mlp", mlp, keep_weights=True)
    deflated = {"compression": zipfile.ZIP_DEFLATED}
    write("deflated", mlp, keep_weights=True, **deflated)

    write(
        "features",
        export(
            Features(),
            (torch.randn(4, 8), 2.0, True),
            {"extra": {"k": torch.ones(3)}, "mask": torch.zeros(4, 4, dtype=torch.bool)},
            dynamic_shapes={
                "x": {0: Dim.AUTO},
                "scale": None,
                "flag": None,
                "extra": {"k": None},
                "mask": {0: Dim.AUTO, 1: Dim.AUTO},
            },
            strict=False,
        ),
        **deflated,
    )
    write("layers", export(Layers(), (torch.randn(2, 4),), strict=False), **deflated)
    write("gradients", export(Gradients(), (torch.randn(4, 4),), strict=False))
    write("literals", export(Literals(), (torch.randn(6, 4),), strict=False), **deflated)
    write(
        "extra",
        export(
            Extra(),
            (torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64)),
            {"reduction": "mean"},
            strict=False,
        ),
        EXTRA,
        keep_weights=True,
    )
    write("condition", export(Condition(), (torch.randn(3),), strict=False))
    write(
        "data_dependent",
        export(
            DataDependent(),
            (torch.full((8, 4), 0.25), 5),
            dynamic_shapes={"x": {0: Dim.DYNAMIC}, "n": Dim.DYNAMIC},
            strict=False,
        ),
    )


if __name__ == "__main__":
    main()
