"""Rank program of cases.Structures for the mesh dp=1.

Written by nnscaler 0.1.0 from plan 0; every rank runs this file
with its own coordinates.
"""

import nnscaler.runtime as rt
import torch
import torch.nn.functional as F
from torch import nn

MESH = rt.Mesh(dp=1)
INPUTS = {
    'batch["x"]': ((4, 8), torch.float64),
    'batch["y"][0]': ((4, 8), torch.float64),
    'batch["y"][1]': ((8,), torch.float64),
}


class GenModel(rt.ParallelModule):
    """cases.Structures"""

    mesh = MESH
    plan_ngpus = 1
    inputs = INPUTS

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.l = nn.Module()
        self.l.weight = rt.parameter(MESH, (8, 8), dtype=torch.float64)
        self.l.bias = rt.parameter(MESH, (8,), dtype=torch.float64)
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, batch, scale=1.0, flag=False, *, mode="a"):
        x = batch["x"]
        rt.check_input('batch["x"]', x, (4, 8), torch.float64)
        y_0 = batch["y"][0]
        rt.check_input('batch["y"][0]', y_0, (4, 8), torch.float64)
        y_1 = batch["y"][1]
        rt.check_input('batch["y"][1]', y_1, (8,), torch.float64)
        rt.check_constant("scale", scale, 2.0)
        rt.check_constant("flag", flag, True)
        rt.check_constant("mode", mode, "a")
        # cases.py:481: h = self.l(batch["x"]) + batch["y"][0] * scale
        linear = F.linear(x, self.l.weight, self.l.bias)
        mul = y_0 * 2.0
        h = linear + mul
        # cases.py:482: return {"loss": h.sum(), "parts": (h, [batch["y"][1] * h]), ...
        total = h.sum()
        mul = y_1 * h
        return {"loss": total, "parts": (h, [mul]), "name": "n", "none": None}
