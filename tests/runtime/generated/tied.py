"""Rank program of Tied (rank_programs.Tied) for the mesh dp=1, tp=2: vocabulary on tp, batch on dp."""

import torch
import torch.nn.functional as F
from torch import nn

import nnscaler.runtime as rt

DP, TP = 1, 2  # Tests put other numbers here.
DTYPE = torch.float64
MESH = rt.Mesh(dp=DP, tp=TP)


class GenModel(rt.ParallelModule):
    """rank_programs.Tied"""

    mesh = MESH
    plan_ngpus = DP * TP
    ties = (("emb.weight", "head.weight"),)
    inputs = {"i": ((4, 5), torch.int64)}

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.emb = nn.Module()
        self.emb.weight = rt.parameter(
            MESH, (12 // TP, 8), shard={0: "tp"}, reduce=("dp",), dtype=DTYPE
        )
        self.blk = nn.ModuleDict({"0": nn.Module()})
        self.blk["0"].weight = rt.parameter(MESH, (8, 8), reduce=("dp",), dtype=DTYPE)
        self.blk["0"].bias = rt.parameter(
            MESH, (8,), reduce=("dp",), dtype=DTYPE, requires_grad=False
        )
        self.head = nn.Module()
        self.head.weight = self.emb.weight  # tied
        self.register_buffer("cnt", rt.buffer(MESH, (), dtype=torch.int64))
        self.register_buffer("cos", rt.buffer(MESH, (5, 8), dtype=DTYPE), persistent=False)
        self.finish_init(init_params, build_buckets)

    def rank_forward(self, i):
        rt.check_input("i", i, (4, 5), torch.int64)
        self.cnt += 1
        i = rt.redistribute(i, MESH, forward=[rt.slice("dp", dim=0)], backward=[])
        h = rt.functional.embedding(i, self.emb.weight, mesh=MESH, rows=("tp",))
        h = rt.redistribute(h, MESH, forward=[rt.all_reduce("tp")], backward=[])
        h = h * self.cos
        h = F.linear(h, self.blk["0"].weight, self.blk["0"].bias)
        h = rt.redistribute(h, MESH, forward=[], backward=[rt.all_reduce("tp")])
        h = F.linear(h, self.head.weight).flatten(0, 1)
        loss = rt.functional.cross_entropy(
            h, i.flatten(), mesh=MESH, batch=("dp",), classes=("tp",), ignore_index=3
        )
        loss = rt.redistribute(loss, MESH, forward=[rt.all_reduce("dp")], backward=[])
        return {"loss": loss, "n": (i != 3).sum()}
