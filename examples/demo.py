"""The whole path on this machine: plan a small GPT, write it down, train it on two ranks, compare, time its collectives.

Run by `make demo`; needs no GPU.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

STEPS = 5


def make():
    """The model and a sample, as `nnscaler export examples.demo:make` takes them."""
    from examples.models.gpt import GPT

    torch.manual_seed(0)
    model = GPT(vocabulary=128, layers=4, hidden=256, heads=8, length=128)
    return model, (), batch(0)


def batch(step: int) -> dict:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 128, (8, 129), generator=generator)
    return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


def train(model, optimizer) -> list[float]:
    losses = []
    for step in range(STEPS):
        loss = model(**batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_rank(directory: str) -> None:
    """What one rank of the job does: the program that a user writes."""
    import torch.distributed as dist

    import nnscaler
    from nnscaler.profiler.timer import CudaTimer

    model, _, sample = make()
    model = nnscaler.parallelize(
        model,
        sample,
        "autodist",
        nnscaler.ComputeConfig(2, 2, pas_config={"mesh": "tp=2", "cluster": "cpu"}),
        gen_savedir=directory,
    )
    optimizer = nnscaler.build_optimizer(model, torch.optim.AdamW, lr=1e-3)
    CudaTimer(enable=True, predefined=True).clear()
    CudaTimer().start("e2e")
    losses = train(model, optimizer)
    CudaTimer().stop("e2e")
    if dist.get_rank() == 0:
        print(f"\n== 4. the time of each collective, a step of {STEPS}")
    CudaTimer().print_all(times=STEPS, rank_only=0)
    if dist.get_rank() == 0:
        Path(directory, "losses.json").write_text(json.dumps(losses))


def main() -> None:
    from nnscaler import _core, export
    from nnscaler.verify import run_ranks, verify

    with tempfile.TemporaryDirectory() as directory:
        model, args, kwargs = make()
        archive, plan = f"{directory}/model.pt2", f"{directory}/plan.json"
        print("== 1. export and plan for two ranks", flush=True)
        export(model, args, kwargs, archive)
        _core.main(["plan", archive, "--mesh", "tp=2", "--cluster", "cpu", "-o", plan])
        print("\n== 2. the code that each rank runs (part of it)", flush=True)
        source = _core.emit(archive, Path(plan).read_text())["gencode0.py"]
        lines = source.splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("class "))
        print("\n".join(lines[start : start + 45]))
        print(f"... {len(lines)} lines in all\n\n== 3. train on two ranks", flush=True)
        run_ranks(2, train_rank, directory)
        losses = json.loads(Path(directory, "losses.json").read_text())
        alone = train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        print("\n== 5. the loss beside the single device")
        for step, (ours, single) in enumerate(zip(losses, alone, strict=True)):
            print(f"step {step}: two ranks {ours:.6f}, one device {single:.6f}")
        if max(abs(a - b) for a, b in zip(losses, alone, strict=True)) > 1e-4:
            sys.exit("the losses differ")
        print("\n== 6. every gradient and parameter, in double precision", flush=True)
        model, args, kwargs = make()
        report = verify(model, args, kwargs, Path(plan).read_text(), archive=archive)
        print(report.text())
        sys.exit(0 if report.equal else 1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
