"""The same on NCCL: skipped, and said so, where there are no GPUs."""

from functools import partial

import pytest
import torch
from rank_programs import Drop, Mix, Tied, difference, load, make, part

import nnscaler.runtime as rt
from nnscaler.checkpoint import load_merged_state_dict_from_rank, merge_state_dicts
from nnscaler.optimizer import build_optimizer
from nnscaler.profiler import CudaTimer
from nnscaler.runtime.mesh import world_rank, world_size
from pool import run_on

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
adam = partial(torch.optim.Adam, lr=0.05)


def needs(num_gpus):
    return pytest.mark.skipif(GPUS < num_gpus, reason=f"needs {num_gpus} GPUs, found {GPUS}")


def train_job(folder, dp, tp, config):
    """Two clipped steps against the CPU, the timer on; merged and loaded again."""
    model = make(Mix)
    module = load("mix", model, folder, dp, tp, **config)()
    assert module.u.weight.device == torch.device("cuda", world_rank())
    optimizer, plain = build_optimizer(module, adam), adam(model.parameters())
    units, unit = module.mesh.num_units, module.mesh.unit
    worst = 0.0
    for step in range(2):
        g = torch.Generator().manual_seed(step)
        xs = [torch.randn(8, 8, generator=g, dtype=torch.float64) for _ in range(units)]
        plain.zero_grad()
        sum(model(x) for x in xs).backward()
        want = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        plain.step()
        t = CudaTimer(enable=True, predefined=True)
        t.clear()
        t.start("e2e")
        optimizer.zero_grad()
        module(xs[unit].cuda()).backward()
        norm = optimizer.clip_gnorm(0.1)
        optimizer.step()
        t.stop("e2e")
        summary = t.summary()
        CudaTimer(predefined=False)
        worst = max(worst, difference(norm.cpu(), want))
        if world_size() > 1:
            assert 0 < summary["fields"]["comm"] <= summary["fields"]["e2e"] * 1.01
            assert summary["fields"]["exposed"] <= summary["fields"]["e2e"] * 1.01
    whole = merge_on_all(module, optimizer)
    for name, p in model.named_parameters():
        worst = max(worst, difference(whole[0][name], p.detach()))
    for p in module.parameters():
        p.data.zero_()
    given = whole if world_rank() == 0 else (None, None)
    load_merged_state_dict_from_rank(module, given[0], optimizer, given[1])
    for name, p in module.named_parameters():
        want = part(module, name, model.get_parameter(name).detach())
        worst = max(worst, difference(p.detach().cpu(), want))
    return worst


def merge_on_all(module, optimizer):
    states = [None] * world_size()
    mine = (module.state_dict(), optimizer.state_dict())
    if world_size() == 1:
        states = [mine]
    else:
        torch.distributed.all_gather_object(states, mine)
    return merge_state_dicts([m for m, _ in states], [o for _, o in states])


ASYNC = {"use_async_reducer": True, "reducer_bucket_cap_mb": 1e-3}


@pytest.mark.parametrize("config", [{}, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize(
    "n, dp, tp",
    [
        pytest.param(1, 1, 1, marks=needs(1)),
        pytest.param(2, 1, 2, marks=needs(2)),
        pytest.param(2, 1, 1, marks=needs(2)),
        pytest.param(4, 2, 2, marks=needs(4)),
    ],
)
def test_training(tmp_path, n, dp, tp, config):
    assert max(run_on(n, train_job, tmp_path, dp, tp, config, backend="nccl")) < 1e-9


def tied_job(folder, tp):
    """Split vocabulary and random states on the device."""
    model = make(Tied)
    module = load("tied", model, folder, 1, tp)()
    i = torch.randint(0, 12, (4, 5), generator=torch.Generator().manual_seed(2))
    want = model(i)["loss"]
    want.backward()
    out = module(i.cuda())
    out["loss"].backward()
    module.sync_grad()
    worst = difference(out["loss"].detach().cpu(), want.detach())
    name = "emb.weight"
    whole = model.get_parameter(name).grad
    worst = max(worst, difference(module.emb.weight.grad.cpu(), part(module, name, whole)))

    module = load("drop", make(Drop), folder, 1, tp)()
    grads = []
    for recompute in (False, True):
        module.recompute = recompute
        module.zero_grad()
        rt.manual_seed(7)
        torch.manual_seed(7)
        module(torch.ones(4, 8, dtype=torch.float64, device="cuda")).square().mean().backward()
        grads.append(module.u.weight.grad.clone())
    assert torch.equal(*grads)
    return worst


@pytest.mark.parametrize("n", [pytest.param(1, marks=needs(1)), pytest.param(2, marks=needs(2))])
def test_split_vocabulary_and_dropout(tmp_path, n):
    assert max(run_on(n, tied_job, tmp_path, n, backend="nccl")) < 1e-9


@needs(1)
def test_timer_waits_for_its_events_only():
    t = CudaTimer(enable=True, predefined=False)
    t.clear()
    a = torch.randn(4096, 4096, device="cuda")
    (a @ a).sum().item()
    side = torch.cuda.Stream()
    t.start("gpu")
    for _ in range(20):
        a @ a
    seconds = t.stop("gpu")
    t.start("side", stream=side)
    t.stop("side", stream=side)
    assert seconds > 20 * 2 * 4096**3 / 1e15  # No device multiplies faster.
    assert t.duration(1, "gpu") == pytest.approx(seconds * 1e3) and t.duration(1, "side") < 100
    t.clear()
