"""A training step on two CPU ranks: our plans beside PyTorch DDP and DTensor tensor parallelism.

GPT and Llama of 4 layers, hidden 256, batch 8 x 128, loss and optimizer included. All variants live in one job and take
turns, in another order each round, so that what else the machine does falls on all of them alike. Processor time is that
of both ranks, all threads. Ratios are taken within a round; their median and its 95 % interval (order statistics) are
what is reported. The variants start from the same weights and see the same batches: their losses must agree.
"""

import argparse
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

RANKS = 2
BATCH, LENGTH, LAYERS, HIDDEN, HEADS = 8, 128, 4, 256, 8
BATCHES = 4  # different ones, in turn
OURS = ("searched", "data", "data, async", "tensor")
DATA, TENSOR = "DDP", ("DTensor", "DTensor, sequence", "DTensor, tuned")
MODELS = ("gpt", "llama")

Step = Callable[[int], torch.Tensor]


# The models, their batches and their rules.


def gpt(vocabulary: int) -> nn.Module:
    from examples.models.gpt import GPT

    return GPT(vocabulary, LENGTH, LAYERS, HIDDEN, HEADS)


def llama(vocabulary: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=HIDDEN,
            intermediate_size=704,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            max_position_embeddings=LENGTH,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )
    return OnlyLoss(model)


class OnlyLoss(nn.Module):
    """Without the logits, which a training step does not need: else our plans would gather them, as forward's results
    are whole on each rank."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.causal = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.causal(input_ids=input_ids, labels=labels).loss


def make(name: str) -> tuple[nn.Module, list[dict[str, torch.Tensor]]]:
    """A model, always with the same weights, and its batches."""
    torch.manual_seed(0)
    vocabulary, build, first = (96, gpt, "tokens") if name == "gpt" else (1024, llama, "input_ids")
    model = build(vocabulary)
    batches = []
    for _ in range(BATCHES):
        tokens = torch.randint(0, vocabulary, (BATCH, LENGTH))
        batches.append({first: tokens, "labels": tokens.roll(-1, 1) if name == "gpt" else tokens})
    return model, batches


COLUMNS = ("q_proj", "k_proj", "v_proj", "fc1", "gate_proj", "up_proj")
ROWS = ("out_proj", "o_proj", "fc2", "down_proj")


def megatron(graph, cfg) -> Iterator:
    """Linear layers by output features, attention by heads, the next linear layer by input features."""
    from nnscaler.policies import OpPartition, OpPlan, get_pas_ops

    for op in get_pas_ops(graph):
        layer = op.fqn.rpartition(".")[2]
        partition = "auto"
        if op.signature == "torch.nn.functional.linear" and layer in COLUMNS:
            partition = OpPartition(input=1, dim=0)
        elif op.signature == "torch.nn.functional.linear" and layer in ROWS:
            partition = OpPartition(input=1, dim=1)
        elif op.signature.endswith("scaled_dot_product_attention"):
            partition = OpPartition(input=0, dim=1)
        yield OpPlan(op, partition=partition)


def halves(graph, cfg) -> Iterator:
    """Linear layers, attention and the tokens' embedding by the batch; what lies between follows."""
    from nnscaler.policies import OpPartition, OpPlan, get_pas_ops

    for op in get_pas_ops(graph):
        by_batch = (
            op.signature == "torch.nn.functional.linear"
            or op.signature.endswith("scaled_dot_product_attention")
            or op.fqn.endswith(("token_embedding", "embed_tokens"))
        )
        yield OpPlan(op, partition=OpPartition(input=0, dim=0) if by_batch else "auto")


# The variants: each a function that runs one step on a batch and returns the loss.


def optimize(kind: str) -> tuple[type[torch.optim.Optimizer], dict]:
    if kind == "sgd":
        return torch.optim.SGD, {"lr": 0.05}
    return torch.optim.AdamW, {"lr": 3e-4}


def ours(name: str, variant: str, optimizer_kind: str, directory: str) -> Step:
    import nnscaler

    model, batches = make(name)
    policy = {"searched": "autodist", "tensor": megatron}.get(variant, halves)
    parallel = nnscaler.parallelize(
        model,
        batches[0],
        policy,
        nnscaler.ComputeConfig(
            RANKS,
            RANKS,
            use_async_reducer=variant == "data, async",
            pas_config={"cluster": "cpu"},
        ),
        gen_savedir=directory,
        instance_name=variant.replace(", ", "_"),
    )
    function, options = optimize(optimizer_kind)
    optimizer = nnscaler.build_optimizer(parallel, function, **options)

    def step(i: int) -> torch.Tensor:
        loss = parallel(**batches[i % BATCHES])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def plain(model: nn.Module, batches: list[dict], optimizer_kind: str) -> Step:
    function, options = optimize(optimizer_kind)
    optimizer = function(model.parameters(), **options)

    def step(i: int) -> torch.Tensor:
        loss = model(**batches[i % BATCHES])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def ddp(name: str, optimizer_kind: str) -> Step:
    """Half of each batch on each rank; it averages the gradients."""
    model, batches = make(name)
    own = slice(dist.get_rank() * BATCH // RANKS, (dist.get_rank() + 1) * BATCH // RANKS)
    halves = [{key: value[own].clone() for key, value in batch.items()} for batch in batches]
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return plain(parallel, halves, optimizer_kind)


def dtensor(name: str, variant: str, optimizer_kind: str) -> Step:
    """As PyTorch's tutorial on tensor parallelism has it.

    Attention runs on local tensors: DTensor cannot split the CPU's attention kernel. "tuned" is what one who knows
    DTensor well would add: `PrepareModuleInput` makes the input of a block's layers a DTensor once, so that its
    gradients are added before one all-reduce, not sent layer by layer.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model, batches = make(name)
    sequence, tuned = variant.endswith("sequence"), variant.endswith("tuned")
    outside = Shard(1) if sequence else Replicate()
    rows = {"output_layouts": outside}
    prepare = PrepareModuleInput(input_layouts=outside, desired_input_layouts=Replicate())
    split = PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
    )
    head = ColwiseParallel(input_layouts=outside, output_layouts=Replicate())
    if name == "gpt":
        local_attention(model)
        layers, first = "blocks", "blocks.0"
        plan = {
            "attention": prepare,
            "mlp": prepare,
            "attention.out_proj": RowwiseParallel(**rows),
            "mlp.fc1": ColwiseParallel(),
            "mlp.fc2": RowwiseParallel(**rows),
        }
        norms, last = ("norm1", "norm2"), {"head": head}
        if sequence:
            last["norm"] = SequenceParallel(use_local_output=True)
    else:
        layers, first = "causal.model.layers", "causal.model.layers.0"
        plan = {
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": outside},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            ),
            "mlp": prepare,
            "self_attn.o_proj": RowwiseParallel(**rows),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(**rows),
        }
        norms, last = ("input_layernorm", "post_attention_layernorm"), {"causal.lm_head": head}
        if sequence:
            last["causal.model.norm"] = SequenceParallel(use_local_output=True)
    attention = "attention" if name == "gpt" else "self_attn"
    for projection in ("q_proj", "k_proj", "v_proj"):
        plan[f"{attention}.{projection}"] = ColwiseParallel()
    if not (sequence or tuned):
        del plan[attention], plan["mlp"]
    whole = {f"{layers}.*.{key}": value for key, value in plan.items()} | last
    if sequence:
        whole |= {f"{layers}.*.{norm}": SequenceParallel() for norm in norms}
        whole[first] = split
    mesh = init_device_mesh("cpu", (RANKS,))
    return plain(parallelize_module(model, mesh, whole), batches, optimizer_kind)


def local_attention(model: nn.Module) -> None:
    """GPT's attention with the number of heads left to the local width, as DTensor's users write it."""
    import torch.nn.functional as F

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        heads = (batch, length, -1, hidden // self.heads)
        q = self.q_proj(x).view(heads).transpose(1, 2)
        k = self.k_proj(x).view(heads).transpose(1, 2)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.out_proj(y.transpose(1, 2).reshape(batch, length, -1)))

    for block in model.blocks:
        block.attention.forward = forward.__get__(block.attention)


# One job.


def rank_main(name: str, rounds: int, warm_up: int, optimizer_kind: str, directory: str) -> None:
    """Makes all variants on this rank and runs them; rank 0 writes the figures."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    steps: dict[str, Step] = {v: ours(name, v, optimizer_kind, directory) for v in OURS}
    steps[DATA] = ddp(name, optimizer_kind)
    steps |= {variant: dtensor(name, variant, optimizer_kind) for variant in TENSOR}
    times: dict[str, list] = {variant: [] for variant in steps}
    losses: dict[str, list] = {variant: [] for variant in steps}
    draw = random.Random(0)
    order = list(steps)
    for i in range(warm_up + rounds):
        draw.shuffle(order)
        for variant in order:
            dist.barrier()
            wall, processor = time.perf_counter(), time.process_time()
            loss = steps[variant](i)
            taken = time.perf_counter() - wall, time.process_time() - processor
            losses[variant].append(loss.item())
            if i >= warm_up:
                times[variant].append(taken)
    dist.barrier()
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, (times, losses))
    if rank == 0:
        facts = {
            variant: {
                "wall": [max(r) for r in zip(*walls(gathered, variant), strict=True)],
                "processor": [sum(r) for r in zip(*processors(gathered, variant), strict=True)],
                "losses": [
                    sum(r) / RANKS for r in zip(*(g[1][variant] for g in gathered), strict=True)
                ],
            }
            for variant in steps
        }
        Path(directory, "facts.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


def walls(gathered: list, variant: str) -> list[list[float]]:
    return [[t[0] for t in g[0][variant]] for g in gathered]


def processors(gathered: list, variant: str) -> list[list[float]]:
    return [[t[1] for t in g[0][variant]] for g in gathered]


def measure(name: str, given: argparse.Namespace) -> dict:
    """Runs a job of two ranks; what its rank 0 wrote."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--rank", name, directory]
        command += ["--rounds", str(given.rounds), "--warm-up", str(given.warm_up)]
        command += ["--optimizer", given.optimizer]
        ranks = [
            subprocess.Popen(
                command,
                stdout=sys.stderr,
                env=os.environ
                | {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(RANKS)
        ]
        try:
            while any(r.poll() is None for r in ranks):
                if any(r.poll() for r in ranks):
                    break
                time.sleep(0.2)
        finally:
            for r in ranks:
                if r.poll() is None:
                    r.kill()
                r.wait()
        if any(r.returncode for r in ranks):
            sys.exit(f"{name}: a rank failed")
        return json.loads(Path(directory, "facts.json").read_text())


# The figures.


def median_interval(values: list[float]) -> list[float]:
    """The median and its 95 % interval by order statistics: no assumption about the distribution."""
    n, ordered = len(values), sorted(values)
    below, k = 0.5**n, 0
    while k < (n - 1) // 2 and below + math.comb(n, k + 1) * 0.5**n <= 0.025:
        k += 1
        below += math.comb(n, k) * 0.5**n
    return [statistics.median(ordered), ordered[k], ordered[n - 1 - k]]


def ratios(a: list[float], b: list[float]) -> list[float]:
    return median_interval([x / y for x, y in zip(a, b, strict=True)])


def figures(facts: dict) -> dict:
    """Medians, ratios and the check of the losses."""
    reference = facts[DATA]["losses"]
    result = {"variants": {}, "targets": {}}
    for variant, row in facts.items():
        apart = max(abs(a / b - 1) for a, b in zip(row["losses"], reference, strict=True))
        entry = {
            "tokens_per_second": BATCH * LENGTH / statistics.median(row["wall"]),
            "processor_seconds": statistics.median(row["processor"]),
            "last_loss": row["losses"][-1],
            "losses_apart": apart,
        }
        for other in (DATA, *TENSOR):
            if other != variant:
                entry[f"processor / {other}"] = ratios(row["processor"], facts[other]["processor"])
                entry[f"wall / {other}"] = ratios(row["wall"], facts[other]["wall"])
        result["variants"][variant] = entry
        if apart > 1e-3:
            sys.exit(f"{variant}: a loss differs from {DATA}'s by {apart:.1e} of it")
    best = min(
        (v for v in facts if v != "searched"), key=lambda v: statistics.median(facts[v]["wall"])
    )
    targets = {f"tensor / {other}, processor": ("tensor", other, 0.7) for other in TENSOR}
    targets[f"data / {DATA}, processor"] = ("data", DATA, 1.0)
    for text, (variant, other, limit) in targets.items():
        value = ratios(facts[variant]["processor"], facts[other]["processor"])
        result["targets"][text] = {"ratio": value, "limit": limit}
    value = ratios(facts["searched"]["wall"], facts[best]["wall"])
    result["targets"][f"searched / {best} (the best other), wall"] = {"ratio": value, "limit": 1.0}
    return result


def show(ratio: list[float] | None) -> str:
    return f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]" if ratio else "1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--rounds", type=int, default=30, help="rounds measured (default 30)")
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before them (default 3)")
    parser.add_argument("--model", choices=MODELS, help="one of them only")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="adamw", help="(adamw)")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        name, directory = given.rank
        rank_main(name, given.rounds, given.warm_up, given.optimizer, directory)
        return
    facts = {}
    for name in [given.model] if given.model else MODELS:
        facts[name] = figures(measure(name, given))
    if given.json:
        print(json.dumps(facts, indent=1))
        return
    for name, result in facts.items():
        print(
            f"{name}: {LAYERS} layers, hidden {HIDDEN}, batch {BATCH} x {LENGTH}, {given.optimizer}, {RANKS} ranks, "
            f"{given.rounds} rounds; processor time as ratio, median [95 %]"
        )
        others = "".join(f"/ {other:<19}" for other in (DATA, *TENSOR))
        print(f"  {'':<18}  tokens/s  processor/step  {others}")
        for variant, row in result["variants"].items():
            beside = [show(row.get(f"processor / {other}")) for other in (DATA, *TENSOR)]
            print(
                f"  {variant:<18} {row['tokens_per_second']:9.0f}  {1e3 * row['processor_seconds']:11.1f} ms  "
                + "  "
                + " ".join(f"{text:<20}" for text in beside)
            )
        apart = max(row["losses_apart"] for row in result["variants"].values())
        print(f"  losses agree to {apart:.0e}")
        for text, row in result["targets"].items():
            met = "met" if row["ratio"][0] <= row["limit"] else "missed"
            print(f"  {text}: {show(row['ratio'])}, target {row['limit']}: {met}")


if __name__ == "__main__":
    main()
