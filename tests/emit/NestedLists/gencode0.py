"""Rank program of cases.NestedLists for the mesh dp=1.

Written by nnscaler 0.1.0 from plan 0; every rank runs this file
with its own coordinates.
"""

import nnscaler.runtime as rt
import torch
import torch.nn.functional as F
from torch import nn

MESH = rt.Mesh(dp=1)
INPUTS = {"x": ((4, 8), torch.float64)}


class Inner(nn.Module):
    """stages.0.blocks.0 to flat.3.2 (19): cases.Inner"""

    def __init__(self):
        super().__init__()
        self.l = nn.Module()
        self.l.weight = rt.parameter(MESH, (8, 8), dtype=torch.float64)
        self.l.bias = rt.parameter(MESH, (8,), dtype=torch.float64)

    def forward(self, x):
        # cases.py:126: h = self.l(x)
        h = F.linear(x, self.l.weight, self.l.bias)
        # cases.py:127: return torch.relu(h) + x
        return F.relu(h) + x


class Stage(nn.Module):
    """stages.0 and stages.1: cases.Stage"""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Inner() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            # cases.py:1185: x = b(x)
            x = block(x)
        return x


class Stage1(nn.Module):
    """stages.2: cases.Stage"""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Inner() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            # cases.py:1185: x = b(x)
            x = block(x)
        return x


class GenModel(rt.ParallelModule):
    """cases.NestedLists"""

    mesh = MESH
    plan_ngpus = 1
    inputs = INPUTS

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.stages = nn.ModuleList([Stage(), Stage(), Stage1()])
        self.flat = nn.ModuleList(
            nn.ModuleList(Inner() for _ in range(3)) for _ in range(4)
        )
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, x):
        rt.check_input("x", x, (4, 8), torch.float64)
        for stage in self.stages[:2]:
            # cases.py:1200: x = st(x)
            x = stage(x)
        x = self.stages[2](x)
        for module in self.flat:
            x_1 = x
            for inner in module:
                # cases.py:1203: x = b(x)
                x_1 = inner(x_1)
            # cases.py:1204: x = x.sin()
            x = x_1.sin()
        return x
