"""State dicts: merged, cut, resumed under other plans, refused where they do not fit."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_programs import Mix, Tied, difference, load, make, part
from torch import nn

from nnscaler.checkpoint import (
    deduped_state_dict,
    load_deduped_state_dict,
    load_merged_state_dict,
    load_merged_state_dict_from_rank,
    load_sharded_state_dict,
    merge_state_dicts,
    trimmed_broadcast_merged_state_dict,
)
from nnscaler.errors import InputError, UnsupportedError
from nnscaler.optimizer import build_optimizer
from nnscaler.runtime.mesh import world_rank
from pool import run_on

adam = partial(torch.optim.Adam, lr=0.05)


class Whole(nn.Module):
    """An ordinary embedding, a parallel body with a tie, ordinary layers, one unused."""

    def __init__(self, body):
        super().__init__()
        self.head = nn.Linear(1, 1).double()
        self.body = body
        self.norm = nn.BatchNorm1d(1).double()
        self.tail = nn.Linear(1, 1).double()

    def forward(self, i):
        return self.tail(self.head(self.body(i)["loss"].view(1, 1))).square().mean()


def make_whole(body):
    torch.manual_seed(6)
    return Whole(body)


def batch(step, units):
    g = torch.Generator().manual_seed(step)
    return [torch.randint(0, 12, (4, 5), generator=g) for _ in range(units)]


def train(module, optimizer, steps, units, unit):
    for step in steps:
        optimizer.zero_grad()
        for i in batch(step, units) if unit is None else [batch(step, units)[unit]]:
            module(i).backward()
        optimizer.step()


def save_job(folder, dp, tp, deduped):
    """Two steps, saved by every rank."""
    module = make_whole(load("tied", make(Tied), folder / "code", dp, tp)())
    optimizer = build_optimizer(module, adam)
    train(module, optimizer, (0, 1), 2, module.body.mesh.unit)
    if deduped:
        state = deduped_state_dict(module, optimizer)
    else:
        state = (module.state_dict(), optimizer.state_dict())
    torch.save(state, folder / f"{world_rank()}.pt")
    return sum(v.numel() for v in state[0].values() if isinstance(v, torch.Tensor))


def resume_job(folder, merged, dp, tp, how):
    """Two more steps under another plan; the largest difference from one device."""
    model = make_whole(make(Tied))
    plain = adam(model.parameters())
    train(model, plain, range(4), 2, None)
    module = make_whole(load("tied", make(Tied, seed=9), folder, dp, tp)())
    for p in module.parameters():
        p.data.fill_(7)
    optimizer = build_optimizer(module, adam)
    whole, state = torch.load(merged, weights_only=True)
    if how == "merged":
        load_merged_state_dict(module, whole, optimizer, state)
    elif how == "plain":
        module.load_state_dict(whole)
        optimizer.load_state_dict(state)
    else:
        source = 1
        given = (whole, state) if world_rank() == source else (None, None)
        load_merged_state_dict_from_rank(module, given[0], optimizer, given[1], src_rank=source)
    train(module, optimizer, (2, 3), 2, module.body.mesh.unit)
    worst = 0.0
    for name, p in module.named_parameters():
        want = model.get_parameter(name).detach()
        if name.startswith("body."):
            want = part(module.body, name[5:], want)
        worst = max(worst, difference(p.detach(), want))
    return worst


PLANS = [(4, 1, 2), (2, 1, 1)]


@pytest.fixture(scope="module", params=[False, True], ids=["sharded", "deduped"])
def saved(request, tmp_path_factory):
    """Shards of two steps on 2 units of tp=2, and merged."""
    folder = tmp_path_factory.mktemp("saved")
    sizes = run_on(4, save_job, folder, 1, 2, request.param)
    shards = [torch.load(folder / f"{r}.pt", weights_only=True) for r in range(4)]
    merged = merge_state_dicts([m for m, _ in shards], [o for _, o in shards])
    torch.save(merged, folder / "merged.pt")
    return folder, shards, merged, sizes, request.param


def test_merged_is_the_original_models(saved):
    _, _, (whole, state), sizes, deduped = saved
    model = make_whole(make(Tied))
    plain = adam(model.parameters())
    train(model, plain, (0, 1), 2, None)
    want, want_state = model.state_dict(), plain.state_dict()
    assert whole.keys() == want.keys()
    assert whole["body.emb.weight"] is whole["body.head.weight"]
    for name, value in want.items():
        assert (whole[name].dtype, whole[name].device) == (value.dtype, value.device)
        if name == "body.cnt":  # Each unit counts its own batches.
            assert whole[name].item() == 2
        else:
            assert difference(whole[name].double(), value.double()) < 1e-9, name
    assert state["param_groups"] == want_state["param_groups"]
    assert state["state"].keys() == want_state["state"].keys()
    for number, entry in want_state["state"].items():
        for key, value in entry.items():
            assert state["state"][number][key].shape == value.shape
            assert difference(state["state"][number][key], value) < 1e-9, (number, key)

    resumed = make_whole(make(Tied, seed=3))
    resumed.load_state_dict(whole, strict=True)
    optimizer = adam(resumed.parameters())
    optimizer.load_state_dict(state)
    train(resumed, optimizer, (2, 3), 2, None)
    train(model, plain, (2, 3), 2, None)
    for name, p in resumed.named_parameters():
        assert difference(p.detach(), model.get_parameter(name).detach()) < 1e-9
    if deduped:  # The tie, under both names; the other weights, cnt; head; norm; tail.
        assert sizes == [2 * 48 + 64 + 8 + 1 + 2 + 5 + 2, 2 * 48, 0, 0]


@pytest.mark.parametrize(
    "n, dp, tp, how",
    [(4, 2, 1, "merged"), (4, 1, 2, "plain"), (2, 1, 1, "merged"), (4, 1, 2, "from rank"),
     (2, 1, 1, "from rank")],
)  # fmt: skip
def test_resume_under_another_plan(saved, tmp_path, n, dp, tp, how):
    assert max(run_on(n, resume_job, tmp_path, saved[0] / "merged.pt", dp, tp, how)) < 1e-9


def same_plan_job(folder, code, deduped):
    module = make_whole(load("tied", make(Tied, seed=9), code, 1, 2)())
    optimizer = build_optimizer(module, adam)
    model_state, state = torch.load(folder / f"{world_rank()}.pt", weights_only=True)
    with torch.no_grad():
        for t in [*module.parameters(), *module.buffers()]:
            if t is not module.body.cos:
                t.zero_()
    (load_deduped_state_dict if deduped else load_sharded_state_dict)(
        module, model_state, optimizer, state
    )
    train(module, optimizer, (2, 3), 2, module.body.mesh.unit)
    torch.save((module.state_dict(), optimizer.state_dict()), code / f"{world_rank()}.pt")


def test_resume_under_the_same_plan(saved, tmp_path):
    run_on(4, same_plan_job, saved[0], tmp_path, saved[4])
    shards = [torch.load(tmp_path / f"{r}.pt", weights_only=True) for r in range(4)]
    whole, state = merge_state_dicts([m for m, _ in shards], [o for _, o in shards])
    model = make_whole(make(Tied))
    plain = adam(model.parameters())
    train(model, plain, range(4), 2, None)
    for name, p in model.named_parameters():
        assert difference(whole[name], p.detach()) < 1e-9, name
    for number, entry in plain.state_dict()["state"].items():
        assert difference(state["state"][number]["exp_avg"], entry["exp_avg"]) < 1e-9


def message(call, kind=InputError):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_what_cannot_be_merged(saved):
    _, shards, _, _, deduped = saved
    models, states = [m for m, _ in shards], [o for _, o in shards]
    assert message(lambda: merge_state_dicts([])) == (
        "merge_state_dicts: no module state dicts are given"
    )
    assert message(lambda: merge_state_dicts([models[0], models[0]])) == (
        "merge_state_dicts: Duplicate rank 0 in the module state dicts"
    )
    assert message(lambda: merge_state_dicts([models[0]])) == (
        "merge_state_dicts: 1 module state dicts and none of rank 1; give those of all ranks from "
        "0 to 1"
    )
    assert message(lambda: merge_state_dicts([models[0], models[3]])) == (
        "merge_state_dicts: Invalid rank 3, 2 module state dicts and none of rank 1; give those of "
        "all ranks from 0 to 1"
    )
    assert message(lambda: merge_state_dicts([{"w": torch.zeros(1)}])).startswith(
        "merge_state_dicts: module state dict number 0 has no rank (CUBE_EXTRA_STATE)"
    )
    assert message(lambda: merge_state_dicts(models, states[:2])) == (
        "merge_state_dicts: 4 module and 2 optimizer state dicts; give those of the same ranks"
    )
    assert message(lambda: merge_state_dicts(models, states[::-1])) == (
        "merge_state_dicts: number 0 is of rank 0 in the module and of rank 3 in the optimizer "
        "state dicts"
    )
    # Any order, and the first unit alone, give the same.
    a, _ = merge_state_dicts(models[::-1], states[::-1])
    b, _ = merge_state_dicts(models[:2], states[:2])
    assert all(torch.equal(a[k], b[k]) for k in a) and a.keys() == b.keys()

    other = dict(models[1])
    other["body.CUBE_EXTRA_STATE"] = {**other["body.CUBE_EXTRA_STATE"], "plan_digest": "x"}
    assert "body. of rank 1 was made under plan x (mesh dp=1,tp=2) and that of rank 0 under" in (
        message(lambda: merge_state_dicts([models[0], other]))
    )
    lacking = {k: v for k, v in models[1].items() if not k.endswith(("emb.weight", "head.weight"))}
    assert message(lambda: merge_state_dicts([models[0], lacking])) == (
        "merge_state_dicts: Uncovered parts of body.emb.weight; the state dicts of some ranks lack "
        "it"
    )
    without = {**states[1], "state": {}}
    assert message(lambda: merge_state_dicts(models[:2], [states[0], without])).startswith(
        "merge_state_dicts: Incomplete optimizer state for parameter body.emb.weight: "
    )
    if not deduped:
        odd = {**models[1], "body.blk.0.weight": models[1]["body.blk.0.weight"] * (1 + 1e-7)}
        assert message(lambda: merge_state_dicts([models[0], odd])) == (
            "merge_state_dicts: Conflict in merging body.blk.0.weight from rank 1: it differs from "
            "the copy of an earlier rank; if that is rounding, give tolerance="
        )
        merge_state_dicts([models[0], odd], tolerance=1e-6)
    strange = {
        **states[0],
        "state": {k: {"row": torch.zeros(3)} for k in states[0]["state"]},
    }
    assert message(
        lambda: merge_state_dicts(models[:2], [strange, states[1]]), UnsupportedError
    ).startswith("merge_state_dicts: row of body.")


def wrong_shards_job(folder):
    """Shards of another plan, of another rank, shapes that do not fit."""
    module = load("mix", make(Mix), folder, 1, 2)()
    optimizer = build_optimizer(module, adam)
    other = load("mix", make(Mix), folder, 2, 1)()
    messages = [
        message(lambda: module.load_state_dict(other.state_dict())),
        message(lambda: optimizer.load_state_dict(build_optimizer(other, adam).state_dict())),
    ]
    states = [None, None]
    dist.all_gather_object(states, (module.state_dict(), optimizer.state_dict()))
    wrong = states[1 - world_rank()]
    messages.append(message(lambda: module.load_state_dict(wrong[0])))
    messages.append(message(lambda: optimizer.load_state_dict(wrong[1])))
    whole = make(Mix).state_dict()
    whole["u.weight"] = torch.zeros(16, 8)
    messages.append(message(lambda: module.load_state_dict(whole), RuntimeError))
    del whole["u.weight"]
    messages.append(message(lambda: load_merged_state_dict(module, whole), RuntimeError))
    messages.append(message(lambda: module.load_merged_state_dict(whole), RuntimeError))
    assert module.load_merged_state_dict({**whole, "more": 1}, strict=False) == ["u.weight"]
    plain = torch.optim.Adam(make(Mix).parameters())
    two = plain.state_dict()
    two["param_groups"] = two["param_groups"] * 2
    messages.append(message(lambda: optimizer.load_state_dict(two)))
    return messages


def test_shards_that_do_not_fit(tmp_path):
    first, second = run_on(2, wrong_shards_job, tmp_path)
    mine, theirs = (
        first[0].partition("this module runs plan ")[2][:12],
        first[0].partition(" plan ")[2][:12],
    )
    assert first[0] == (
        f"load_state_dict: the shard was made under plan {theirs} (mesh dp=2,tp=1) and this module "
        f"runs plan {mine} (mesh dp=1,tp=2); merge the shards of all ranks with "
        "nnscaler.merge_state_dicts and load the result"
    )
    assert first[1] == (
        f"optimizer.load_state_dict: the shard was made under plan {{'': '{theirs}'}} with 8 "
        f"parameters and this optimizer runs plan {{'': '{mine}'}} with 8; merge the shards of all "
        "ranks with nnscaler.merge_state_dicts and load the result"
    )
    assert first[2] == (
        "load_state_dict: this is the shard of rank 1 and rank 0 loads it; load each rank's own"
    )
    assert second[3] == (
        "optimizer.load_state_dict: this is the shard of rank 0 and rank 1 loads it; load each "
        "rank's own"
    )
    assert (
        "size mismatch for u.weight: the state dict has (16, 8) and the whole tensor is (32, 8)"
        in first[4]
    )
    assert first[5] == first[6] == "Missing key(s) in state_dict: u.weight"
    assert first[7] == (
        "optimizer state: it has 2 parameter groups and the optimizer 1; build the optimizer with "
        "the same groups"
    )


def gather_job(folder):
    model = make(Mix)
    module = load("mix", model, folder, 2, 2)()
    whole = module.gather_state_dict()
    assert list(whole) == list(model.state_dict())
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in whole.items())
    parts = module.trim_merged_state_dict({f"p.{k}": v for k, v in whole.items()}, "p.")
    assert all(torch.equal(v, module.state_dict()[k[2:]]) for k, v in parts.items())
    whole["u.weight"].zero_()
    assert module.u.weight.abs().max() > 0


def test_gather_and_trim(tmp_path):
    run_on(4, gather_job, tmp_path)


def trim_errors_job(folder):
    module = load("mix", make(Mix), folder, 1, 1)()
    trim, whole = trimmed_broadcast_merged_state_dict, make(Mix).state_dict()
    mine = whole if world_rank() == 0 else None
    got = [
        message(lambda: trim(module, mine, dst_ranks=[1, 0]), ValueError),
        message(lambda: trim(module, mine, dst_ranks=[1 - world_rank()]), ValueError),
        message(lambda: trim(module, whole, src_rank=1 - world_rank()), ValueError),
        message(lambda: trim(module, src_rank=world_rank()), ValueError),
        message(lambda: trim(module, whole, None, {}, src_rank=world_rank()), ValueError),
    ]
    model, state = trim(module, mine)
    assert state is None and torch.equal(model["u.weight"], whole["u.weight"])
    assert model["CUBE_EXTRA_STATE"]["rank"] == world_rank()
    return got


def test_trimmed_broadcast_refuses(tmp_path):
    where = "trimmed_broadcast_merged_state_dict: "
    assert run_on(2, trim_errors_job, tmp_path)[0] == [
        where + "dst_ranks [1, 0] must be ascending, each rank once",
        where + "this rank 0 is not in dst_ranks [1]",
        where + "only rank 1 (src_rank) may give state dicts",
        where + "rank 0 is src_rank and gives no module state dict",
        where + "an optimizer state dict is given and no optimizer",
    ]


def groups_job(folder):
    """Two parameter groups: merged and loaded, here and into torch.optim."""

    def groups(module):
        names = {id(p): n for n, p in module.named_parameters()}

        def build(params):
            few = [p for p in params if "weight" in names[id(p)]]
            rest = [p for p in params if "weight" not in names[id(p)]]
            return torch.optim.AdamW(
                [{"params": rest, "weight_decay": 0.0}, {"params": few}], lr=0.1
            )

        return build

    model = make(Mix)
    module = load("mix", model, folder, 1, 2)()
    optimizer = build_optimizer(module, groups(module))
    plain = groups(model)(list(model.parameters()))
    x = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for m, o in ((model, plain), (module, optimizer)):
        m(x).backward()
        o.step()
    states = [None, None]
    dist.all_gather_object(states, (module.state_dict(), optimizer.state_dict()))
    whole, merged = merge_state_dicts([m for m, _ in states], [o for _, o in states])
    again = make(Mix)
    again.load_state_dict(whole)
    resumed = groups(again)(list(again.parameters()))
    resumed.load_state_dict(merged)
    optimizer.load_state_dict(plain.state_dict())  # Numbered by torch, group after group.
    second = optimizer.state_dict()
    optimizer.load_state_dict(merged)
    third = optimizer.state_dict()
    for place, entry in third["state"].items():
        for key in entry:
            assert difference(second["state"][place][key], entry[key]) < 1e-9
    for o in (plain, resumed, optimizer):
        o.zero_grad()
    for m, o in ((model, plain), (again, resumed), (module, optimizer)):
        m(x).backward()
        o.step()
    worst = 0.0
    for name, p in model.named_parameters():
        p = p.detach()
        worst = max(worst, difference(again.get_parameter(name).detach(), p))
        worst = max(worst, difference(module.get_parameter(name).detach(), part(module, name, p)))
    return worst


def test_parameter_groups(tmp_path):
    assert max(run_on(2, groups_job, tmp_path)) < 1e-9


def sgd_job(folder):
    """State of other optimizers merges where it is shaped like the parameter."""
    model = make(Mix)
    module = load("mix", model, folder, 1, 2)()
    make_sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    optimizer, plain = build_optimizer(module, make_sgd), make_sgd(model.parameters())
    x = torch.ones(8, 8, dtype=torch.float64).tril()
    for m, o in ((model, plain), (module, optimizer)):
        m(x).backward()
        o.step()
    states = [None, None]
    dist.all_gather_object(states, (module.state_dict(), optimizer.state_dict()))
    _, merged = merge_state_dicts([m for m, _ in states], [o for _, o in states])
    want = plain.state_dict()["state"]
    assert merged["state"].keys() == want.keys()
    return max(
        difference(merged["state"][k]["momentum_buffer"], v["momentum_buffer"])
        for k, v in want.items()
        if v["momentum_buffer"] is not None
    )


def test_other_optimizers(tmp_path):
    assert max(run_on(2, sgd_job, tmp_path)) < 1e-9


def derived_job(folder):
    """Without the file of names the order is that of the weights' file."""
    model = make(Mix)
    cls = load("mix", model, folder, 1, 2)
    module = cls()
    file = Path(module.module_dir) / "origin_module_metadata.pt"
    if world_rank() == 0:
        file.unlink()
    dist.barrier()
    again = cls()
    assert again.origin_module_metadata == module.origin_module_metadata
    return again.origin_module_metadata["origin_param_names"]


def test_names_without_their_file(tmp_path):
    names = [name for name, _ in make(Mix).named_parameters()]
    assert run_on(2, derived_job, tmp_path) == [names, names]
