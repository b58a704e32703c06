"""Models that the hand-written rank programs in `generated` are of, and their loading."""

import importlib.util
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import nnscaler.runtime as rt
from nnscaler.config import ComputeConfig
from nnscaler.runtime.mesh import world_rank, world_size


class Mix(nn.Module):
    """Replicated, split and scalar parameters, and one that nobody uses."""

    def __init__(self):
        super().__init__()
        self.n = nn.LayerNorm(8)
        self.u = nn.Linear(8, 32)
        self.unused = nn.Linear(8, 4, bias=False)
        self.d = nn.Linear(32, 8)
        self.t = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (self.d(F.gelu(self.u(self.n(x)))) * self.t).square().mean()


class Tied(nn.Module):
    """A tie, a frozen parameter, a counter, a table that is not saved, a dict as the result."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 8)
        self.blk = nn.ModuleDict({"0": nn.Linear(8, 8)})
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.emb.weight
        self.blk["0"].bias.requires_grad_(False)
        self.register_buffer("cnt", torch.zeros((), dtype=torch.long))
        self.register_buffer(
            "cos", torch.cos(torch.arange(5.0)[:, None] * torch.ones(8)), persistent=False
        )

    def forward(self, i):
        self.cnt += 1
        h = self.blk["0"](self.emb(i) * self.cos)
        loss = F.cross_entropy(self.head(h).flatten(0, 1), i.flatten(), ignore_index=3)
        return {"loss": loss, "n": (i != 3).sum()}


class Drop(nn.Module):
    """Dropout inside and outside of what is split."""

    def __init__(self):
        super().__init__()
        self.u = nn.Linear(8, 64, bias=False)
        self.d = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        h = F.dropout(self.u(x), 0.5, self.training)
        h = F.dropout(self.d(h), 0.5, self.training)
        return h * 2 + torch.rand((), dtype=x.dtype)


def make(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    """A model in float64, the same on every rank."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = kind().double()
    torch.set_rng_state(state)
    return model


_count = 0


def load(
    name: str, model: nn.Module, folder: Path, dp: int = 1, tp: int = 1, **config
) -> type[rt.ParallelModule]:
    """The class of a rank program, in a directory of its own with the model's weights.

    All ranks call it with the same.

    Args:
        name: of the program in `generated`.
        model: gives the weights.
        folder: for the directory.
        dp: size of the mesh's axis dp.
        tp: size of tp.
        config: fields of `ComputeConfig`.
    """
    global _count
    _count += 1
    package = f"{name}_dp{dp}_tp{tp}_{_count}"
    directory = Path(folder) / package
    if world_rank() == 0:
        directory.mkdir(parents=True)
        source = (Path(__file__).parent / "generated" / f"{name}.py").read_text()
        source = re.sub(r"^DP, TP = .*$", f"DP, TP = {dp}, {tp}", source, flags=re.M)
        (directory / "gencode0.py").write_text(source)
        saved = model.state_dict(keep_vars=True)
        whole = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        whole = {k: v.detach() for k, v in whole.items()}
        torch.save({k: v for k, v in whole.items() if k in saved}, directory / "fullmodel.pt.0")
        torch.save({k: v for k, v in whole.items() if k not in saved}, directory / "npbuffer.pt")
        torch.save(
            {
                "origin_state_dict_names": list(saved),
                "origin_param_names": [k for k, _ in model.named_parameters()],
                "origin_shared_param_names": [["emb.weight", "head.weight"]]
                if name == "tied"
                else [],
            },
            directory / "origin_module_metadata.pt",
        )
    if world_size() > 1:
        dist.barrier()
    spec = importlib.util.spec_from_file_location(package, directory / "gencode0.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    cls = module.GenModel
    cls.compute_config = ComputeConfig(dp * tp, world_size(), **config)
    cls.__orig_module_class__ = type(model)
    return cls


def difference(a: torch.Tensor, b: torch.Tensor, scale: float = 0.0) -> float:
    """max|a - b| over the larger of max|b| and ``scale``."""
    if a.numel() == 0:
        return 0.0
    return ((a - b).abs().max() / max(b.abs().max().item(), scale, 1e-300)).item()


def part(module: rt.ParallelModule, name: str, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor."""
    coordinates = module.mesh.coordinates_of(world_rank())
    return whole[module._layouts[name].slices(coordinates)]
