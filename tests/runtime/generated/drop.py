"""Rank program of a dropout MLP for the mesh dp=1, tp=2: hidden on tp, recomputed in backward."""

import torch
import torch.nn.functional as F
from torch import nn

import nnscaler.runtime as rt

DP, TP = 1, 2  # Tests put other numbers here.
DTYPE = torch.float64
MESH = rt.Mesh(dp=DP, tp=TP)


class GenModel(rt.ParallelModule):
    """rank_programs.Drop"""

    mesh = MESH
    plan_ngpus = DP * TP
    inputs = {"x": ((4, 8), DTYPE)}
    eval_mode = "flags"
    recompute = True  # Tests switch it.

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.u = nn.Module()
        self.u.weight = rt.parameter(MESH, (64 // TP, 8), shard={0: "tp"}, dtype=DTYPE)
        self.d = nn.Module()
        self.d.weight = rt.parameter(MESH, (64, 64 // TP), shard={1: "tp"}, dtype=DTYPE)
        self.masks = []
        self.register_buffer("_scale", torch.tensor(2.0, dtype=DTYPE), persistent=False)
        self.finish_init(init_params, build_buckets)

    def region(self, x):
        h = F.linear(x, self.u.weight)
        with MESH.rng("tp"):  # split over tp: each shard draws its own
            h = F.dropout(h, 0.5, self.training)
        self.masks.append((h != 0).detach())
        h = F.linear(h, self.d.weight)
        h = rt.redistribute(h, MESH, forward=[rt.all_reduce("tp")], backward=[])
        with MESH.rng():  # whole on every rank: all draw the same
            h = F.dropout(h, 0.5, self.training)
        self.masks.append((h != 0).detach())
        return h

    def rank_forward(self, x):
        rt.check_input("x", x, (4, 8), DTYPE)
        x = rt.redistribute(x, MESH, forward=[], backward=[rt.all_reduce("tp")])
        h = rt.checkpoint(self.region, x) if self.recompute else self.region(x)
        with MESH.rng():
            noise = torch.rand((), dtype=DTYPE)
        return h * self._scale + noise
