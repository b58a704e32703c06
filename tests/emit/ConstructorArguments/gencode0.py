"""Rank program of cases.ConstructorArguments for the mesh dp=1.

Written by nnscaler 0.1.0 from plan 0; every rank runs this file
with its own coordinates.
"""

import nnscaler.runtime as rt
import torch
import torch.nn.functional as F
from torch import nn

MESH = rt.Mesh(dp=1)
INPUTS = {"x": ((4, 8), torch.float64)}


class Sub(nn.Module):
    """a.0.in_ to c.4 (9): cases.Sub"""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, linear):
        # cases.py:1074: return x * self.k + 0.5
        mul = linear * self.scale
        return mul + 0.5


class Args(nn.Module):
    """a.0 to b (4): cases.Args"""

    def __init__(self, scale, size, size_1, l_out):
        super().__init__()
        self.scale = scale
        self.size = size
        self.size_1 = size_1
        self.l = nn.Module()
        self.l.weight = rt.parameter(MESH, (l_out, 8), dtype=torch.float64)
        self.l.bias = rt.parameter(MESH, (l_out,), dtype=torch.float64)
        self.m = nn.Module()
        self.m.weight = rt.parameter(MESH, (8, l_out), dtype=torch.float64)
        self.m.bias = rt.parameter(MESH, (8,), dtype=torch.float64)
        self.in_ = Sub(size)

    def forward(self, x):
        # cases.py:1062: self.in_(self.m(F.gelu(self.l(x)) * self.scale))
        linear = F.linear(x, self.l.weight, self.l.bias)
        mul = F.gelu(linear) * self.scale
        linear = F.linear(mul, self.m.weight, self.m.bias)
        sub = self.in_(linear)
        # cases.py:1063: .view(-1, self.k, x.shape[-1] // self.k)
        sub = sub.view(-1, self.size, self.size_1)
        # cases.py:1064: .sum(1)
        return sub.sum(1)


class GenModel(rt.ParallelModule):
    """cases.ConstructorArguments"""

    mesh = MESH
    plan_ngpus = 1
    inputs = INPUTS

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.a = nn.ModuleList(
            Args(scale, size, size_1, l_out)
            for scale, size, size_1, l_out in (
                (0.5, 1, 8, 8),
                (0.3333333333333333, 2, 4, 16),
                (0.2, 4, 2, 32),
            )
        )
        self.b = Args(0.3333333333333333, 2, 4, 16)
        self.c = nn.ModuleList(Sub(scale) for scale in range(5))
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, x):
        rt.check_input("x", x, (4, 8), torch.float64)
        # cases.py:1088: y = sum(layer(x).sum() for layer in self.a) + self.b(x).sum()
        args = self.a[0](x)
        y = args.sum() + 0
        for args in self.a[1:]:
            args_1 = args(x)
            total = args_1.sum()
            y = y + total
        args = self.b(x)
        total = args.sum()
        y = y + total
        for sub in self.c:
            # cases.py:1090: x = layer(x)
            x = sub(x)
        # cases.py:1091: return x + y
        return x + y
