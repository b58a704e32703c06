"""Rank program of pkg.model.Net for the mesh dp=2,tp=2.

Written by nnscaler 0.1.0 from plan 5e1f0c; every rank runs this file
with its own coordinates.
"""

import nnscaler.runtime as rt
import torch
import torch.nn.functional as F
from torch import nn

MESH = rt.Mesh(dp=2, tp=2)
INPUTS = {"x": ((8, 8), torch.float32), "labels": ((8,), torch.int64)}


class Layer(nn.Module):
    """layers.0 and layers.1: pkg.model.Layer"""

    def __init__(self):
        super().__init__()
        self.up = nn.Module()
        # whole (32, 8)
        self.up.weight = rt.parameter(MESH, (16, 8), shard={0: "tp"}, reduce=("dp",))
        self.down = nn.Module()
        # whole (8, 32)
        self.down.weight = rt.parameter(MESH, (8, 16), shard={1: "tp"}, reduce=("dp",))

    def forward(self, x):
        # up and gate give partial gradients over tp; 128 bytes backward
        x_1 = rt.redistribute(x, MESH, forward=[], backward=[rt.all_reduce("tp")])
        # model.py:76: h = F.gelu(self.up(x))
        linear = F.linear(x_1, self.up.weight)
        h = F.gelu(linear)
        with MESH.rng("dp", "tp"):
            # model.py:75: h = self.dropout(h)
            h = F.dropout(h, 0.1, self.training)
        # model.py:80: return x + self.down(h)
        linear = F.linear(h, self.down.weight)
        # down leaves partial results over tp; 128 bytes
        linear = rt.redistribute(
            linear, MESH, forward=[rt.all_reduce("tp")], backward=[]
        )
        return x + linear


class GenModel(rt.ParallelModule):
    """pkg.model.Net"""

    mesh = MESH
    plan_ngpus = 4
    inputs = INPUTS

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.register_buffer("steps", rt.buffer(MESH, (), dtype=torch.int64))
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Module()
        self.head.weight = rt.parameter(MESH, (5, 8), reduce=("dp",))
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, x, labels=None, *, mode="train"):
        rt.check_input("x", x, (8, 8), torch.float32)
        rt.check_input("labels", labels, (8,), torch.int64)
        rt.check_constant("mode", mode, "train")
        if self.training:
            # model.py:12: self.steps += 1
            self.steps.add_(1)
        # x is split along the batch over dp; 256 bytes backward
        x = rt.redistribute(
            x,
            MESH,
            forward=[rt.slice("dp", dim=0)],
            backward=[rt.all_gather("dp", dim=0)],
        )
        for layer in self.layers:
            # model.py:18: x = layer(x)
            x = layer(x)
        with torch.no_grad():
            # model.py:78: norm = x.abs().mean()
            norm = x.abs().mean() / 2
        # model.py:88: logits = self.head(x)
        logits = F.linear(x, self.head.weight)
        # labels are split along the batch over dp
        labels = rt.redistribute(
            labels, MESH, forward=[rt.slice("dp", dim=0)], backward=[]
        )
        # model.py:16: loss = F.cross_entropy(logits, labels)
        # each rank has its rows of the batch
        loss = rt.functional.cross_entropy(
            logits, labels, reduction="mean", mesh=MESH, batch=("dp",)
        )
        # cross_entropy leaves partial results over dp; 4 bytes
        loss = rt.redistribute(loss, MESH, forward=[rt.all_reduce("dp")], backward=[])
        return {"loss": loss, "norm": norm}
