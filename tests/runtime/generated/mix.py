"""Rank program of Mix (rank_programs.Mix) for the mesh dp=2, tp=2: batch on dp, hidden on tp."""

import torch
import torch.nn.functional as F
from torch import nn

import nnscaler.runtime as rt

DP, TP = 2, 2  # Tests put other numbers here.
DTYPE = torch.float64
MESH = rt.Mesh(dp=DP, tp=TP)


class GenModel(rt.ParallelModule):
    """rank_programs.Mix"""

    mesh = MESH
    plan_ngpus = DP * TP
    inputs = {"x": ((8, 8), DTYPE)}

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.t = rt.parameter(MESH, (), reduce=("dp",), dtype=DTYPE)
        self.n = nn.Module()
        self.n.weight = rt.parameter(MESH, (8,), reduce=("dp",), dtype=DTYPE)
        self.n.bias = rt.parameter(MESH, (8,), reduce=("dp",), dtype=DTYPE)
        self.u = nn.Module()
        self.u.weight = rt.parameter(
            MESH, (32 // TP, 8), shard={0: "tp"}, reduce=("dp",), dtype=DTYPE
        )
        self.u.bias = rt.parameter(MESH, (32 // TP,), shard={0: "tp"}, reduce=("dp",), dtype=DTYPE)
        self.unused = nn.Module()
        self.unused.weight = rt.parameter(MESH, (4, 8), reduce=("dp",), dtype=DTYPE)
        self.d = nn.Module()
        self.d.weight = rt.parameter(
            MESH, (8, 32 // TP), shard={1: "tp"}, reduce=("dp",), dtype=DTYPE
        )
        self.d.bias = rt.parameter(MESH, (8,), reduce=("dp",), dtype=DTYPE)
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, x):
        rt.check_input("x", x, (8, 8), DTYPE)
        x = rt.redistribute(
            x, MESH, forward=[rt.slice("dp", dim=0)], backward=[rt.all_gather("dp", dim=0)]
        )
        h = F.layer_norm(x, (8,), self.n.weight, self.n.bias)
        h = rt.redistribute(h, MESH, forward=[], backward=[rt.all_reduce("tp")])
        h = F.gelu(F.linear(h, self.u.weight, self.u.bias))
        h = F.linear(h, self.d.weight)
        h = rt.redistribute(h, MESH, forward=[rt.all_reduce("tp")], backward=[])
        h = (h + self.d.bias) * self.t
        loss = torch.mean(h.square()) / DP
        return rt.redistribute(loss, MESH, forward=[rt.all_reduce("dp")], backward=[])
