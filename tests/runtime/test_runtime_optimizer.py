"""Training by build_optimizer, alone and among ordinary modules, against one device."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from rank_programs import Mix, Tied, difference, load, make, part
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip_imported_early
from torch.nn.utils import get_total_norm as total_norm_imported_early

from nnscaler.checkpoint import broadcast_weights
from nnscaler.config import ComputeConfig
from nnscaler.errors import InputError
from nnscaler.flags import sync_grad_when
from nnscaler.optimizer import build_optimizer
from nnscaler.runtime import reducer
from nnscaler.runtime.mesh import world_rank, world_size
from nnscaler.utils import accum_mode
from pool import run_on

MESHES = [(1, 1, 1), (2, 2, 1), (2, 1, 2), (2, 1, 1), (4, 2, 2), (4, 1, 2)]
ASYNC = {"use_async_reducer": True, "reducer_bucket_cap_mb": 1e-3}
adamw = partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1)


def inputs(count, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 8, generator=g, dtype=torch.float64) for _ in range(count)]


def unlike(module, model):
    """Largest difference of parameters."""
    worst = 0.0
    for name, p in module.named_parameters():
        want = model.get_parameter(name).detach()
        worst = max(worst, difference(p.detach(), part(module, name, want)))
    return worst


def clipping_job(folder, dp, tp, config, how, early):
    """Three steps of two microbatches, clipped; norms and weights."""
    model = make(Mix)
    module = load("mix", model, folder, dp, tp, **config)()
    optimizer = build_optimizer(module, adamw)
    plain = adamw(model.parameters())
    units, unit = module.mesh.num_units, module.mesh.unit
    worst = 0.0
    for step in range(3):
        xs = inputs(2 * units, seed=step)
        plain.zero_grad()
        sum(model(x) for x in xs).backward()
        want = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        plain.step()

        optimizer.zero_grad()
        for i in accum_mode.steps(2):
            module(xs[2 * unit + i]).backward()
        if how == "optimizer":
            assert difference(optimizer.clip_gnorm(), want) < 1e-12
            norm = optimizer.clip_gnorm(0.1)
        elif how == "module":
            norm = module.clip_gnorm(0.1)[0]
        else:
            norm = early(module.parameters(), 0.1)
        optimizer.step()
        worst = max(worst, difference(norm, want), unlike(module, model))
    return worst


@pytest.mark.parametrize("n, dp, tp", MESHES)
def test_clipped_training(tmp_path, n, dp, tp):
    for how in ("optimizer", "module", "torch"):
        for name, config in (("sync", {}), ("async", ASYNC)):
            folder = tmp_path / f"{how}-{name}"
            early = clip_imported_early
            got = run_on(n, clipping_job, folder, dp, tp, config, how, early)
            assert max(got) < 1e-9, (how, name)


def norms_job(folder):
    """Other norms, by the functions that were imported before nnscaler."""
    model = make(Mix)
    module = load("mix", model, folder, 2, 2)()
    optimizer = build_optimizer(module, adamw)
    x = inputs(1)[0]
    model(x).backward()
    module(x).backward()
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    nn.utils.clip_grad_value_(module.parameters(), 1e-3)
    worst = 0.0
    for order in (1.0, 2.0, 3.0, float("inf")):
        want = total_norm_imported_early(
            [p.grad for p in model.parameters() if p.grad is not None], order
        )
        got = total_norm_imported_early(
            [p.grad for p in module.parameters() if p.grad is not None], order
        )
        worst = max(worst, difference(got, want))
    optimizer.scale_grads(0.5)
    worst = max(
        worst,
        difference(
            optimizer.clip_gnorm() * 2,
            total_norm_imported_early([p.grad for p in model.parameters() if p.grad is not None]),
        ),
    )
    # Ordinary tensors are what they were.
    assert total_norm_imported_early([torch.full((4,), 2.0)]).item() == 4.0
    for p in module.parameters():
        if p.grad is not None:
            p.grad.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_imported_early(module.parameters(), 1.0, error_if_nonfinite=True)
    return worst


def test_norms_of_torch(tmp_path):
    assert max(run_on(4, norms_job, tmp_path)) < 1e-12


def unused_job(folder, config):
    """What nobody uses keeps its value, weight decay or not, and has no state."""
    model = make(Mix)
    module = load("mix", model, folder, 2, 1, **config)()
    optimizer = build_optimizer(module, adamw)
    module(inputs(1)[0]).backward()
    optimizer.step()
    assert torch.equal(module.unused.weight, model.unused.weight)
    assert module.unused.weight.grad is None
    assert module.unused.weight not in optimizer.state and module.u.weight in optimizer.state


@pytest.mark.parametrize("config", [{}, ASYNC], ids=["sync", "async"])
def test_unused_parameter(tmp_path, config):
    run_on(2, unused_job, tmp_path, config)


def absorbing_job(job, *args):
    """A job in which every gradient moves into its bucket during backward, as large ones do."""
    before, reducer._ABSORB_BYTES = reducer._ABSORB_BYTES, 1
    try:
        return job(*args)
    finally:
        reducer._ABSORB_BYTES = before


@pytest.mark.parametrize("config", [{}, ASYNC], ids=["sync", "async"])
def test_large_gradients(tmp_path, config):
    got = run_on(2, absorbing_job, no_zero_grad_job, tmp_path / "a", config)
    assert max(got) < 1e-12
    args = (tmp_path / "b", 2, 1, config, "optimizer", None)
    assert max(run_on(2, absorbing_job, clipping_job, *args)) < 1e-9
    run_on(2, absorbing_job, unused_job, tmp_path / "c", config)


def no_zero_grad_job(folder, config):
    """Gradients that are kept over steps count once, as on one device."""
    model = make(Mix)
    module = load("mix", model, folder, 1, 1, **config)()
    optimizer = build_optimizer(module, torch.optim.SGD, lr=0.1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    worst = 0.0
    for step in range(4):
        xs = inputs(2, seed=step)
        if step == 2:
            plain.zero_grad(set_to_none=False)
            optimizer.zero_grad(set_to_none=False)
        sum(model(x) for x in xs).backward()
        plain.step()
        loss = module(xs[world_rank()])
        loss.backward()
        if step == 1:
            optimizer.sync_shard_grad()
        optimizer.step()
        if step == 3:
            optimizer.sync_shard_grad()  # Once more, without a forward.
        for name, p in module.named_parameters():
            if p.grad is not None:
                worst = max(worst, difference(p.grad, model.get_parameter(name).grad))
        worst = max(worst, unlike(module, model))
    return worst


@pytest.mark.parametrize(
    "config", [{}, ASYNC, {"reducer_replicated_params": True}], ids=["sync", "async", "replicated"]
)
def test_gradients_kept_over_steps(tmp_path, config):
    assert max(run_on(2, no_zero_grad_job, tmp_path, config)) < 1e-12


class Whole(nn.Module):
    """A parallel body between ordinary layers, and one that only some batches use."""

    def __init__(self, body):
        super().__init__()
        self.stem = nn.Linear(4, 8).double()
        self.body = body
        self.side = nn.Linear(8, 8).double()
        self.head = nn.Linear(1, 1, bias=False).double()

    def forward(self, x, side=False):
        h = self.stem(x)
        if side:
            h = self.side(h)
        return self.head(self.body(h).view(1, 1)).square().mean()


def whole_model(body):
    torch.manual_seed(5)
    return Whole(body)


def mixed_job(folder, config, given):
    """Two units of two ranks; the second has no batch in step 1, and uses `side` in step 2."""
    model = whole_model(make(Mix))
    module = whole_model(load("mix", make(Mix), folder, 1, 2, **config)())
    given = ComputeConfig(2, world_size(), **given) if given is not None else None
    optimizer = build_optimizer(module, adamw, given)
    plain = adamw(model.parameters())
    unit = world_rank() // 2
    worst = 0.0
    for step in range(4):
        g = torch.Generator().manual_seed(step)
        xs = [torch.randn(8, 4, generator=g, dtype=torch.float64) for _ in range(2)]
        plain.zero_grad()
        sum(model(x, step == 2 and u) for u, x in enumerate(xs) if not (step == 1 and u)).backward()
        want = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        plain.step()
        optimizer.zero_grad()
        if not (step == 1 and unit):
            module(xs[unit], step == 2 and unit).backward()
        if step == 3:
            norm = clip_imported_early(module.parameters(), 0.5)
        else:
            norm = optimizer.clip_gnorm(0.5)
        worst = max(worst, difference(norm, want))
        if step < 2:
            assert module.side.weight.grad is None and module.side.weight not in optimizer.state
        optimizer.step()
        worst = max(worst, unlike(module.body, model.body))
        for name, p in module.named_parameters():
            if not name.startswith("body."):
                worst = max(worst, difference(p.detach(), model.get_parameter(name).detach()))
    return worst, optimizer._non_parallel_module_reducer.ranks


@pytest.mark.parametrize(
    "config, given", [({}, None), (ASYNC, ASYNC), ({}, ASYNC)], ids=["sync", "async", "both"]
)
def test_mixed_modules(tmp_path, config, given):
    got = run_on(4, mixed_job, tmp_path, config, given)
    assert max(worst for worst, _ in got) < 1e-9
    assert [ranks for _, ranks in got] == [(0, 2), (1, 3), (0, 2), (1, 3)]


def mixed_kept_job(folder):
    """Ordinary parameters, too, keep gradients over steps once."""
    model = whole_model(make(Mix))
    module = whole_model(load("mix", make(Mix), folder, 1, 1)())
    optimizer = build_optimizer(module, torch.optim.SGD, lr=0.1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    worst = 0.0
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        xs = [torch.randn(8, 4, generator=g, dtype=torch.float64) for _ in range(2)]
        sum(model(x) for x in xs).backward()
        plain.step()
        module(xs[world_rank()]).backward()
        optimizer.step()
        for name, p in module.named_parameters():
            if p.grad is not None:
                worst = max(worst, difference(p.grad, model.get_parameter(name).grad))
    return worst


def test_gradients_of_mixed_modules_kept_over_steps(tmp_path):
    assert max(run_on(2, mixed_kept_job, tmp_path)) < 1e-12


class Pair(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x, i):
        return self.a(x) + self.b(i)["loss"]


def pair_job(folder):
    """Two parallel modules of different meshes."""
    model = Pair(make(Mix), make(Tied))
    module = Pair(load("mix", model.a, folder, 2, 2)(), load("tied", model.b, folder, 1, 4)())
    optimizer = build_optimizer(module, adamw)
    plain = adamw(p for p in model.parameters() if p.requires_grad)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    plain_scheduler = torch.optim.lr_scheduler.LambdaLR(plain, lambda n: 1 / (n + 1))
    worst = 0.0
    for step in range(3):
        x = inputs(1, step)[0]
        i = torch.randint(0, 12, (4, 5), generator=torch.Generator().manual_seed(step))
        for m, o, s in ((model, plain, plain_scheduler), (module, optimizer, scheduler)):
            o.zero_grad()
            m(x, i).backward()
            if o is plain:
                want = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            else:
                worst = max(worst, difference(o.clip_gnorm(1.0), want))
            o.step()
            s.step()
        worst = max(worst, unlike(module.a, model.a), unlike(module.b, model.b))
    assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    return worst


def test_two_parallel_modules(tmp_path):
    assert max(run_on(4, pair_job, tmp_path)) < 1e-9


def groups_job(folder):
    """Parameter groups by the user's names, hooks, step hooks counted."""
    model = make(Mix)
    module = load("mix", model, folder, 1, 1)()
    names = {id(p): name for name, p in module.named_parameters()}

    def make_optimizer(params):
        decay = [p for p in params if names[id(p)].endswith("weight")]
        rest = [p for p in params if not names[id(p)].endswith("weight")]
        return torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=0.1)

    optimizer = build_optimizer(module, make_optimizer)
    assert isinstance(optimizer, torch.optim.AdamW) and type(optimizer).__name__ == "AdamW"
    assert [len(g["params"]) for g in optimizer.param_groups] == [4, 4]
    seen, steps = [], []
    optimizer.register_reducer_pre_hook(lambda reducer, grad: grad.div_(len(reducer.ranks)))
    optimizer.register_reducer_post_hook(lambda reducer, grad: seen.append(grad.numel()))
    optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    optimizer.load_state_dict(optimizer.state_dict())
    xs = inputs(2)
    (sum(model(x) for x in xs) / 2).backward()
    module(xs[world_rank()]).backward()
    with pytest.raises(RuntimeError, match=r"scale_grads: call sync_shard_grad\(\) first"):
        optimizer.scale_grads(2.0)
    optimizer.sync_shard_grad()
    worst = max(
        difference(p.grad, model.get_parameter(name).grad)
        for name, p in module.named_parameters()
        if p.grad is not None
    )
    optimizer.step()
    assert len(seen) == 1 and seen[0] >= module.reducers[0].numel and steps == [1]
    return worst


def test_parameter_groups_and_hooks(tmp_path):
    assert max(run_on(2, groups_job, tmp_path)) < 1e-12


def refusals_job(folder):
    module = load("mix", make(Mix), folder, 1, 1)()
    messages = []

    def refused(kind, call):
        with pytest.raises(kind) as caught:
            call()
        messages.append(str(caught.value))

    refused(RuntimeError, lambda: build_optimizer(nn.Linear(2, 2), adamw))
    end = load("mix", make(Mix), folder, 1, 1, use_end2end=True)()
    refused(RuntimeError, lambda: build_optimizer(nn.ModuleDict({"m": end}), adamw))
    other = load("mix", make(Mix), folder, 1, 2)()
    refused(RuntimeError, lambda: build_optimizer(nn.ModuleDict({"a": module, "b": other}), adamw))
    refused(RuntimeError, lambda: build_optimizer(module, adamw, ComputeConfig(2, 2)))
    refused(RuntimeError, lambda: build_optimizer(module, adamw, param_clss_fn=len))
    hybrid = partial(adamw)
    hybrid.is_hybrid = True
    refused(ValueError, lambda: build_optimizer(module, hybrid))
    for p in module.parameters():
        p.requires_grad_(False)
    refused(RuntimeError, lambda: build_optimizer(module, adamw))
    frozen = load("tied", make(Tied), folder, 1, 1)()
    frozen.blk["0"].bias.requires_grad_()
    refused(RuntimeError, lambda: build_optimizer(frozen, adamw))

    mixed = Whole(load("mix", make(Mix), folder, 1, 1)())
    torch.manual_seed(world_rank())
    for p in mixed.stem.parameters():
        nn.init.normal_(p)
    optimizer = build_optimizer(mixed, adamw)
    mixed(torch.zeros(8, 4, dtype=torch.float64)).backward()
    refused(InputError, lambda: optimizer.step())
    broadcast_weights(mixed)
    optimizer.zero_grad()
    mixed(torch.zeros(8, 4, dtype=torch.float64)).backward()
    optimizer.step()
    return messages


def test_refusals(tmp_path):
    config = "{'plan_ngpus': %d, 'runtime_ngpus': 2}"
    assert run_on(2, refusals_job, tmp_path)[0] == [
        "build_optimizer: there is no parallel module; call parallelize first",
        "build_optimizer: m has use_end2end and is inside another module; an end to end module is "
        "a whole model",
        f"build_optimizer: a is for {config % 1} and b for {config % 2}; all parallel modules need "
        "the same",
        f"build_optimizer: compute_config is for {config % 2} and the module for {config % 1}",
        "build_optimizer: param_clss_fn needs modules made with build_buckets=False",
        "build_optimizer: a hybrid optimizer needs param_clss_fn",
        "build_optimizer: no parameter requires a gradient",
        "GenModel: blk.0.bias did not require a gradient when the program was made; set "
        "requires_grad before nnscaler.parallelize",
        "stem.weight, outside of parallel modules, has other values on rank 1 than on rank 0; seed "
        "all ranks alike, or call nnscaler.broadcast_weights(module)",
    ]


def classes_job(folder):
    """Classes part the buckets; a hybrid optimizer is given them."""
    module = load("mix", make(Mix), folder, 1, 1)(build_buckets=False)
    given = {}

    def hybrid(params, classes, lr):
        given.update({id(p): c for p, c in classes.items()})
        return torch.optim.SGD(params, lr=lr)

    hybrid.is_hybrid = True
    build_optimizer(module, hybrid, param_clss_fn=lambda name: name.endswith("bias"), lr=0.1)
    assert all(given[id(p)] == name.endswith("bias") for name, p in module.named_parameters())
    return sorted(len(b.params) for b in module.reducers[0].buckets)


def test_classes(tmp_path):
    assert run_on(2, classes_job, tmp_path) == [[3, 5]] * 2


def late_gradient_job(folder):
    module = load("mix", make(Mix), folder, 1, 1, **ASYNC)()
    optimizer = build_optimizer(module, adamw)
    x = inputs(1)[0]
    module(x).backward()
    with pytest.raises(RuntimeError) as caught:
        module(x).backward()
    optimizer.zero_grad()
    module.set_grad_accumulation_steps(2)
    module(x).backward()
    module(x).backward()
    optimizer.sync_shard_grad()
    first = module.u.weight.grad.clone()
    optimizer.zero_grad()
    module.set_grad_accumulation_steps(1)
    with sync_grad_when(False):
        module(x).backward()
    assert not any(b.started for b in module.reducers[0].buckets)
    with sync_grad_when(True):
        module(x).backward()
    # The last of them waits for a parameter that never comes.
    assert [b.started for b in module.reducers[0].buckets].count(True) >= 1
    optimizer.zero_grad()
    dist.barrier()
    module(x).backward()
    optimizer.sync_shard_grad()
    assert difference(first, 2 * module.u.weight.grad) < 1e-12
    return str(caught.value)


def test_unannounced_accumulation_with_async_reducer(tmp_path):
    assert run_on(2, late_gradient_job, tmp_path)[0] == (
        "a gradient came after its bucket was reduced: with use_async_reducer put "
        "nnscaler.sync_grad_when(False) around all but the last microbatch, or call "
        "set_grad_accumulation_steps"
    )
