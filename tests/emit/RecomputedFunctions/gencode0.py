"""Rank program of cases.RecomputedFunctions for the mesh dp=1.

Written by nnscaler 0.1.0 from plan 0; every rank runs this file
with its own coordinates.
"""

import nnscaler.runtime as rt
import torch
import torch.nn.functional as F
from torch import nn

MESH = rt.Mesh(dp=1)
INPUTS = {"x": ((4, 8), torch.float64)}


class Block(nn.Module):
    """layers.0 to layers.3 (4): cases.Block"""

    def __init__(self):
        super().__init__()
        self.l = nn.Module()
        self.l.weight = rt.parameter(MESH, (8, 8), dtype=torch.float64)
        self.l.bias = rt.parameter(MESH, (8,), dtype=torch.float64)

    def forward(self, x):
        # cases.py:379: return self.d(F.gelu(self.l(x))) + y
        linear = F.linear(x, self.l.weight, self.l.bias)
        gelu = F.gelu(linear)
        return F.dropout(gelu, 0.3, self.training) + x


class GenModel(rt.ParallelModule):
    """cases.RecomputedFunctions"""

    mesh = MESH
    plan_ngpus = 1
    inputs = INPUTS

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.out = nn.Module()
        self.out.weight = rt.parameter(MESH, (8, 8), dtype=torch.float64)
        self.out.bias = rt.parameter(MESH, (8,), dtype=torch.float64)
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, x):
        rt.check_input("x", x, (4, 8), torch.float64)
        for layer in self.layers:
            # cases.py:413: x = checkpoint(f, x, use_reentrant=False)
            x = rt.checkpoint(self._recompute, layer, x)
        # cases.py:418: return checkpoint(g, x, use_reentrant=False)
        return rt.checkpoint(self._recompute_1, x)

    def _recompute(self, layer, x):
        xs = []
        for _ in range(2):
            # cases.py:413: x = checkpoint(f, x, use_reentrant=False)
            x = layer(x)
            xs.append(x)
        # cases.py:411: return h + layer(h, h)
        return xs[0] + x

    def _recompute_1(self, x):
        # cases.py:418: return checkpoint(g, x, use_reentrant=False)
        linear = F.linear(x, self.out.weight, self.out.bias)
        # cases.py:416: return F.gelu(self.out(h))
        return F.gelu(linear)
