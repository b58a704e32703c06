"""Split two linear layers in a way of your own, and nothing else.

The first weight is split along its first dimension, the second along its second; the rest of the model stays ordinary
PyTorch. Two ways to say it: rules in YAML, and a policy. Run:

    torchrun --nproc_per_node=2 examples/two_linears.py [rules|policy]
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import nnscaler
from nnscaler.policies import OpPartition, OpPlan, get_pas_ops

RULES = """\
- name: torch.nn.functional.linear
  parent_module: fc1
  allowed_partition_dims: ["1,0"]
  replica_allowed: false
- name: torch.nn.functional.linear
  parent_module: fc2
  allowed_partition_dims: ["1,1"]
  replica_allowed: false
"""


class TwoLinears(nn.Module):
    def __init__(self, dim: int = 16, hidden: int = 32):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.fc2(self.fc1(x))


class Model(nn.Module):
    """The part to split, between layers that are not."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.middle = TwoLinears()
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.middle(self.stem(x))).square().mean()


def policy(graph, cfg):
    """Splits the weight of fc1 along dimension 0 and that of fc2 along dimension 1."""
    for op in get_pas_ops(graph):
        if op.signature == "torch.nn.functional.linear":
            yield OpPlan(op, partition=OpPartition(input=1, dim=0 if op.fqn == "fc1" else 1))


def parallel_model(how: str, directory: str) -> nn.Module:
    """The model with its middle parallelized on all ranks; alike on each of them."""
    torch.manual_seed(0)
    model = Model()
    ranks = dist.get_world_size()
    pas_config = {}
    if how == "rules":
        rules = Path(directory) / "rules.yaml"
        rules.write_text(RULES)
        pas_config["partition_constraints_path"] = str(rules)
    model.middle = nnscaler.parallelize(
        model.middle,
        {"x": torch.randn(4, 16)},
        "autodist" if how == "rules" else policy,
        nnscaler.ComputeConfig(ranks, ranks, pas_config=pas_config),
        gen_savedir=directory,
    )
    return model


def main() -> None:
    nnscaler.init()
    how = sys.argv[1] if len(sys.argv) > 1 else "rules"
    directory = [tempfile.mkdtemp()]
    dist.broadcast_object_list(directory)
    model = parallel_model(how, directory[0])
    optimizer = nnscaler.build_optimizer(model, torch.optim.SGD, lr=0.1)
    if dist.get_rank() == 0:
        print((model.middle.module_dir / "gencode0.py").read_text())
    for step in range(3):
        torch.manual_seed(step)
        loss = model(torch.randn(4, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    nnscaler.uninit()


if __name__ == "__main__":
    main()
