"""Random numbers: alike or independent as the layout asks, the same again in recomputation."""

import torch
import torch.distributed as dist
from rank_programs import Drop, difference, load, make

import nnscaler.runtime as rt
from nnscaler.runtime import random
from pool import run_on


def draws_job(seed):
    random._base = None
    random._states.clear()
    torch.manual_seed(seed + dist.get_rank())  # Only rank 0's counts.
    random.agree_on_seed()
    torch.manual_seed(99)
    mesh = rt.Mesh(a=2, b=2)
    drawn = {}
    for name, axes in (("whole", ()), ("a", ("a",)), ("b", ("b",)), ("ab", ("a", "b"))):
        with mesh.rng(*axes):
            first = torch.rand(3)
        with mesh.rng(*axes):
            drawn[name] = [*first.tolist(), *torch.rand(3).tolist()]
    half = rt.Mesh(a=2)  # Two units.
    with half.rng():
        drawn["unit"] = torch.rand(3).tolist()
    after = torch.rand(3)
    torch.manual_seed(99)
    assert torch.equal(after, torch.rand(3)), "the default generator moved"
    return drawn


def test_who_draws_alike():
    ranks = run_on(4, draws_job, 3)
    groups = {
        "whole": [[0, 1, 2, 3]],
        "a": [[0, 1], [2, 3]],
        "b": [[0, 2], [1, 3]],
        "ab": [[0], [1], [2], [3]],
    }
    seen = []
    for name, alike in groups.items():
        for group in alike:
            values = [ranks[r][name] for r in group]
            assert all(v == values[0] for v in values), name
            seen.append(tuple(values[0]))
    assert len(set(seen)) == len(seen), "two streams are the same"
    # The whole of unit 0 is the default generator with rank 0's seed.
    torch.manual_seed(3)
    assert ranks[0]["whole"] == [*torch.rand(3).tolist(), *torch.rand(3).tolist()]
    # That stream went on; the second unit has its own.
    assert ranks[0]["unit"] == ranks[1]["unit"] == torch.rand(3).tolist()
    assert ranks[2]["unit"] == ranks[3]["unit"] != ranks[0]["unit"]
    assert run_on(4, draws_job, 3) == ranks
    assert run_on(4, draws_job, 4)[0]["whole"] != ranks[0]["whole"]


def drop_job(folder):
    cls = load("drop", make(Drop), folder, 1, 2)
    x = torch.ones(4, 8, dtype=torch.float64)
    results = []
    for recompute in (False, True):
        rt.manual_seed(11)
        torch.manual_seed(dist.get_rank())  # Plays no part.
        module = cls()
        module.recompute = recompute
        own = x.clone().requires_grad_()
        outs = [module(own), module(own)]
        sum(o.square().mean() for o in outs).backward()
        if recompute:
            # Backward comes by the second call first, and ends where all is there again.
            assert len(module.masks) == 6
            assert torch.equal(module.masks[0], module.masks[5])
            assert torch.equal(module.masks[2], module.masks[4])
        with rt.Mesh(dp=1, tp=2).rng():
            last = torch.rand(2)
        results.append([outs[0].detach(), outs[1].detach(), own.grad, module.u.weight.grad, last])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(results[0][0], results[0][1])
    module.masks.clear()
    module.eval()
    rt.manual_seed(11)
    a = module(x)
    rt.manual_seed(11)
    assert torch.equal(a, module(x))
    assert all(bool(mask.all()) for mask in module.masks)
    module.train()
    rt.manual_seed(11)
    module.masks.clear()
    out = module(x)
    return [mask.tolist() for mask in module.masks], out.tolist()


def test_dropout(tmp_path):
    (masks0, out0), (masks1, out1) = run_on(2, drop_job, tmp_path)
    assert masks0[0] != masks1[0]
    assert masks0[1] == masks1[1] and out0 == out1


def one_rank_job(folder, recompute):
    """One rank draws what the original model draws from the same seed."""
    model = make(Drop)
    module = load("drop", model, folder, 1, 1)()
    module.recompute = recompute
    x = torch.ones(4, 8, dtype=torch.float64)
    outs = []
    for m in (model, module):
        torch.manual_seed(5)
        out = m(x)
        out.square().mean().backward()
        outs.append((out.detach(), m.u.weight.grad, torch.rand(2)))
    return max(difference(a, b) for a, b in zip(*outs, strict=True))


def test_one_rank_is_the_original(tmp_path):
    for recompute in (False, True):
        assert run_on(1, one_rank_job, tmp_path / str(recompute), recompute) == [0.0]
