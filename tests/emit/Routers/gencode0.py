"""Rank program of cases.Routers for the mesh dp=1.

Written by nnscaler 0.1.0 from plan 0; every rank runs this file
with its own coordinates.
"""

import nnscaler.runtime as rt
import torch
import torch.nn.functional as F
from torch import nn

MESH = rt.Mesh(dp=1)
INPUTS = {"x": ((4, 8), torch.float64)}


class Router(nn.Module):
    """enc.layers.0 to enc.layers.3 (4): cases.Router"""

    def __init__(self):
        super().__init__()
        self.l = nn.Module()
        self.l.weight = rt.parameter(MESH, (8, 8), dtype=torch.float64)
        self.l.bias = rt.parameter(MESH, (8,), dtype=torch.float64)
        self.r = nn.Module()
        self.r.weight = rt.parameter(MESH, (2, 8), dtype=torch.float64)
        self.r.bias = rt.parameter(MESH, (2,), dtype=torch.float64)

    def forward(self, router):
        # cases.py:596: r = self.r(x)
        r = F.linear(router, self.r.weight, self.r.bias)
        # cases.py:597: return (self.l(x) * r.softmax(-1)[:, :1], r)
        linear = F.linear(router, self.l.weight, self.l.bias)
        part = r.softmax(-1)[:, :1]
        mul = linear * part
        return r, mul


class Encoder(nn.Module):
    """enc: cases.Encoder"""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Router() for _ in range(4))

    def forward(self, x):
        router = x
        rs = []
        for layer in self.layers:
            # cases.py:584: x, r = layer(x)
            r, router = layer(router)
            rs.append(r)
        return rs, router


class GenModel(rt.ParallelModule):
    """cases.Routers"""

    mesh = MESH
    plan_ngpus = 1
    inputs = INPUTS

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.enc = Encoder()
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, x):
        rt.check_input("x", x, (4, 8), torch.float64)
        # cases.py:609: x, rs = self.enc(x)
        rs, encoder = self.enc(x)
        cs = []
        for item in rs:
            # cases.py:610: c = torch.cat([r.to(x.device) for r in rs], 0)
            c = item.to(device=rt.device(), dtype=torch.float64)
            cs.append(c)
        c = torch.cat(cs)
        # cases.py:613: tot = tot + r.pow(2).mean()
        power = cs[0] ** 2
        tot = power.mean() + 0
        for item in cs[1:]:
            power = item**2
            mean = power.mean()
            tot = tot + mean
        # cases.py:614: return x.sum() + c.sum() + tot
        total = encoder.sum()
        total_1 = c.sum()
        add = total + total_1
        return add + tot
