"""Parallel modules: numbers as on one device, values, ends to end, and what is refused."""

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_programs import Mix, Tied, difference, load, make, part

import nnscaler.runtime as rt
from nnscaler.checkpoint import broadcast_weights
from nnscaler.errors import InputError, UnsupportedError
from nnscaler.flags import sync_grad_when
from nnscaler.runtime.mesh import world_rank
from pool import run_on

MESHES = [(1, 1, 1), (2, 2, 1), (2, 1, 2), (2, 1, 1), (4, 2, 2), (4, 1, 2), (4, 4, 1)]


def inputs(count, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 8, generator=g, dtype=torch.float64) for _ in range(count)]


def gradients_job(folder, dp, tp, config, microbatches):
    """Loss, input gradient and every gradient, summed over units and microbatches."""
    model = make(Mix)
    module = load("mix", model, folder, dp, tp, **config)()
    units, unit = module.mesh.num_units, module.mesh.unit
    xs = [x.requires_grad_() for x in inputs(units * microbatches)]
    losses = [model(x) for x in xs]
    sum(losses).backward()
    worst = 0.0
    for i in range(microbatches):
        place = unit * microbatches + i
        x = xs[place].detach().clone().requires_grad_()
        with sync_grad_when(i + 1 == microbatches):
            loss = module(x)
            loss.backward()
        worst = max(worst, difference(loss.detach(), losses[place].detach()))
        worst = max(worst, difference(x.grad, xs[place].grad))
    module.sync_grad()
    module.sync_grad()  # Nothing more.
    for name, p in model.named_parameters():
        mine = module.get_parameter(name)
        if p.grad is None:
            assert mine.grad is None, name
        else:
            worst = max(worst, difference(mine.grad, part(module, name, p.grad)))
    return worst


@pytest.mark.parametrize("n, dp, tp", MESHES)
@pytest.mark.parametrize(
    "config",
    [{}, {"use_async_reducer": True, "reducer_bucket_cap_mb": 1e-3},
     {"reducer_replicated_params": True}],
    ids=["sync", "async", "replicated"],
)  # fmt: skip
def test_gradients(tmp_path, n, dp, tp, config):
    for microbatches in (1, 2):
        folder = tmp_path / str(microbatches)
        assert max(run_on(n, gradients_job, folder, dp, tp, config, microbatches)) < 1e-12


def tied_job(folder, dp, tp):
    model = make(Tied)
    module = load("tied", model, folder, dp, tp)()
    assert module.head.weight is module.emb.weight
    worst = 0.0
    for seed in range(2):
        i = torch.randint(0, 12, (4, 5), generator=torch.Generator().manual_seed(seed))
        want, out = model(i), module(i)
        want["loss"].backward()
        out["loss"].backward()
        module.sync_grad()
        worst = max(worst, difference(out["loss"].detach(), want["loss"].detach()))
        for name, p in model.named_parameters():
            mine = module.get_parameter(name)
            assert mine.requires_grad == p.requires_grad
            if p.requires_grad:
                worst = max(worst, difference(mine.grad, part(module, name, p.grad)))
            else:
                assert mine.grad is None
    assert module.cnt.item() == 2
    assert module.blk["0"].bias.grad is None
    return worst, module.layout_digest(), sorted(module.fullmap), module.fullmap["head.weight"]


@pytest.mark.parametrize("n, dp, tp", [(1, 1, 1), (2, 1, 2), (4, 2, 2), (4, 1, 4)])
def test_ties_frozen_weights_and_buffers(tmp_path, n, dp, tp):
    got = run_on(n, tied_job, tmp_path, dp, tp)
    assert max(worst for worst, *_ in got) < 1e-12
    assert len({digest for _, digest, *_ in got}) == 1
    names = ["blk.0.bias", "blk.0.weight", "cnt", "cos", "emb.weight", "head.weight"]
    rows = 12 // tp
    for rank, (_, _, found, meta) in enumerate(got):
        assert found == names
        low = rank % tp * rows
        assert (meta.shape, meta.sub_shape, meta.slicers) == (
            (12, 8), (rows, 8), (slice(low, low + rows), slice(0, 8)),
        )  # fmt: skip


def values_job(folder):
    """Weights by file, by hand, by broadcast; nobody computes with nothing."""
    model = make(Tied)
    cls = load("tied", model, folder, 1, 2)
    i = torch.zeros(4, 5, dtype=torch.long)
    module = cls(init_params=False)
    with pytest.raises(RuntimeError) as caught:
        module(i)
    text = str(caught.value)
    assert bool(module.emb.weight.isnan().all())
    state = model.state_dict()
    del state["emb.weight"]  # One name of a tie is enough.
    module.load_state_dict(state)
    want = module(i)["loss"].item()
    assert torch.equal(module.emb.weight, part(module, "emb.weight", model.emb.weight))

    if dist.get_rank() == 0:
        (module.module_dir / "npbuffer.pt").unlink()
    dist.barrier()
    bare = cls()
    with pytest.raises(RuntimeError) as caught:
        bare(i)
    buffers = str(caught.value)
    assert not bare.non_presistent_buffers_inited
    assert list(bare.get_non_persistent_buffers()) == ["cos"]
    with pytest.raises(RuntimeError, match="haven't been initialized in the module of rank"):
        broadcast_weights(bare)
    bare.cos.copy_(model.cos)
    bare.mark_non_persistent_buffers_inited()
    assert bare(i)["loss"].item() == want

    if dist.get_rank() == 0:
        torch.save({"emb.weight": model.emb.weight.detach()}, module.module_dir / "fullmodel.pt.0")
    dist.barrier()
    with pytest.raises(InputError) as caught:
        cls()
    missing = str(caught.value).partition(": ")[2]
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save({"cnt": torch.zeros(2)}, module.module_dir / "fullmodel.pt.0")
    dist.barrier()
    with pytest.raises(InputError) as caught:
        cls()
    return text, buffers, missing, str(caught.value).partition(": ")[2]


def test_values(tmp_path):
    assert run_on(2, values_job, tmp_path)[0] == (
        "parameters without values: blk.0.bias, blk.0.weight, emb.weight, head.weight; "
        "load a state dict, or make the module with init_params=True",
        "Non-persistent buffers haven't been initialized: cos; call nnscaler.broadcast_weights, or "
        "fill them and call mark_non_persistent_buffers_inited()",
        "no values for blk.0.bias, blk.0.weight, cnt in fullmodel.pt.*; generate the code again, "
        "or give init_params=False and load a state dict",
        "cnt is torch.float32 (2,) and the generated code has torch.int64 (); generate the code "
        "again",
    )


def broadcast_job(folder):
    """Units that start from other weights hold those of the first unit afterwards."""
    module = load("mix", make(Mix, seed=dist.get_rank() // 2), folder, 1, 2)()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(dist.get_rank() // 2)
    broadcast_weights(module)
    model = make(Mix)
    return all(
        torch.equal(p, part(module, k, model.get_parameter(k)))
        for k, p in module.named_parameters()
    )


def test_broadcast_weights(tmp_path):
    assert run_on(4, broadcast_job, tmp_path) == [True] * 4


def end2end_job(folder, config):
    model = make(Mix)
    module = load("mix", model, folder, 1, 2, use_end2end=True, **config)()
    unit = module.mesh.unit
    xs = inputs(4)
    losses = [model(x) for x in xs]
    (sum(losses[:3]) * 2).backward()  # The fourth is a dummy.
    for _ in range(2):  # The second step starts from zero.
        mine = module.train_step(
            xs[2 * unit : 2 * unit + 2], [False, unit == 1], scale_fn=lambda loss: loss * 2
        )
    worst = max(
        difference(a.detach(), b.detach()) for a, b in zip(mine, losses[2 * unit :], strict=False)
    )
    for name, p in model.named_parameters():
        if p.grad is not None:
            mine = module.get_parameter(name).grad
            worst = max(worst, difference(mine, part(module, name, p.grad)))
    out = module.infer_step(xs[:1])
    assert difference(out[0], losses[0].detach()) < 1e-12 and out[0].grad_fn is None
    with pytest.raises(NotImplementedError, match="use_end2end: call train_step"):
        module(xs[0])
    with pytest.raises(ValueError, match="2 samples and 1 entries in is_dummy_batch"):
        module.train_step(xs[:2], [False])
    with pytest.raises(ValueError, match="samples must be a list"):
        module.train_step([])
    return worst


@pytest.mark.parametrize(
    "config",
    [{}, {"use_async_reducer": True, "reducer_bucket_cap_mb": 1e-3}],
    ids=["sync", "async"],
)
def test_end_to_end(tmp_path, config):
    assert max(run_on(4, end2end_job, tmp_path, config)) < 1e-12


def dict_loss_job(folder):
    module = load("tied", make(Tied), folder, 1, 2, use_end2end=True)()
    i = torch.zeros(4, 5, dtype=torch.long)
    assert module.train_step([i])[0].keys() == {"loss", "n"}
    plain = load("tied", make(Tied), folder, 1, 2)()
    with pytest.raises(RuntimeError, match="need use_end2end=True"):
        plain.train_step([i])
    type(module)._loss_of({"loss": torch.zeros(())})
    messages = []
    for output in ({"n": 1}, (torch.zeros(2), 1), []):
        with pytest.raises(RuntimeError) as caught:
            module._loss_of(output)
        messages.append(str(caught.value))
    return messages


def test_loss_of_an_end_to_end_module(tmp_path):
    for message, what in zip(
        run_on(2, dict_loss_job, tmp_path)[0],
        ("<class 'NoneType'>", "shape (2,)", "<class 'NoneType'>"),
        strict=True,
    ):
        assert message == (
            "train_step: the first result of forward (or its entry 'loss') must be a scalar "
            f"tensor, and is {what}; write forward so that it returns loss, or (loss, other)"
        )


def refusals_job(folder):
    module = load("mix", make(Mix), folder, 1, 2)()
    messages = []

    def refused(kind, call):
        with pytest.raises(kind) as caught:
            call()
        messages.append(str(caught.value))

    refused(InputError, lambda: module(torch.zeros(6, 8, dtype=torch.float64)))
    refused(InputError, lambda: module(torch.zeros(8, 8)))
    refused(InputError, lambda: module([1]))
    refused(ValueError, lambda: module.half())
    refused(ValueError, lambda: torch.nn.Sequential(module).float())
    refused(ValueError, lambda: module.to(torch.float32))
    refused(ValueError, lambda: module.to("cpu", torch.float32))
    refused(RuntimeError, lambda: module.build_buckets())
    refused(ValueError, lambda: type(module).get_attr_meta_map(2))
    refused(InputError, lambda: module.load_state_dict(make(Mix).state_dict(), assign=True))
    assert module.to("cpu") is module and module.double() is module
    type(module).eval_mode, type(module).eval_reason = "differs", "model.py:3: if self.training:"
    module.train()
    refused(NotImplementedError, lambda: torch.nn.Sequential(module).eval())
    type(module).eval_mode = "flags"
    assert not module.eval().training
    unbuilt = type(module)(build_buckets=False)
    refused(RuntimeError, lambda: unbuilt.sync_grad())
    return messages


def test_refusals(tmp_path):
    assert run_on(2, refusals_job, tmp_path)[0] == [
        "forward: argument x has shape (6, 8) and the program was made for (8, 8); give that "
        "shape, or declare the extent as dynamic when parallelizing",
        "forward: argument x is torch.float32 and the program was made for torch.float64; convert "
        "it, or parallelize with a sample of that dtype",
        "forward: argument x must be a tensor and is list",
        "GenModel: the dtype of a parallel module is fixed; convert the original module before "
        "nnscaler.parallelize",
        "GenModel: the dtype of a parallel module is fixed; convert the original module before "
        "nnscaler.parallelize",
        "GenModel: to() moves a parallel module to a device only; convert the original module "
        "before nnscaler.parallelize",
        "GenModel: to() moves a parallel module to a device only; convert the original module "
        "before nnscaler.parallelize",
        "GenModel: build_buckets was called before",
        "get_attr_meta_map: rank 2 is not one of 0 to 1",
        "GenModel: load_state_dict(assign=True) would part the parameters from their gradient "
        "buckets; use assign=False",
        "GenModel: eval() is another program than training here: model.py:3: if self.training:; "
        "parallelize the module in evaluation mode for it",
        "GenModel: call build_buckets() before training",
    ]


def sleep_job(folder):
    module = load("mix", make(Mix), folder, 1, 1)()
    before = {name: (id(p), p.clone()) for name, p in module.named_parameters()}
    module(inputs(1)[0]).backward()
    module.sync_grad()
    with pytest.raises(RuntimeError, match="sleep: gradients are there"):
        module.sleep()
    module.zero_grad()
    module.sleep()
    module.wake_up()
    for name, p in module.named_parameters():
        assert (id(p), True) == (before[name][0], torch.equal(p, before[name][1]))
    module(inputs(1)[0]).backward()
    module.sync_grad()
    return module.u.weight.grad.norm().item()


def test_sleep_and_wake_up(tmp_path):
    a, b = run_on(2, sleep_job, tmp_path)
    assert a == b > 0


def disagreement_job(folder):
    """Rank 1 runs another file."""
    cls = load("mix", make(Mix), folder, 1, 2)
    if dist.get_rank() == 1:
        own = Path(folder) / "rank1" / "gencode0.py"
        own.parent.mkdir()
        own.write_text(Path(sys.modules[cls.__module__].__file__).read_text() + "# changed\n")
        sys.modules[cls.__module__].__file__ = str(own)
        cls.module_dir = None
    with pytest.raises(InputError) as caught:
        cls()
    return str(caught.value)


def test_ranks_with_different_code(tmp_path):
    for text in run_on(2, disagreement_job, tmp_path):
        assert text.startswith("the ranks differ in generated code of GenModel in ")
        assert " on rank 0; " in text and " on rank 1; " in text
        assert text.endswith(
            "give all of them the same files, on a shared file system or with "
            "broadcast_strategy='all'"
        )


def config_job(folder):
    from nnscaler.config import ComputeConfig

    cls = load("mix", make(Mix), folder, 1, 2)
    cls.compute_config = ComputeConfig(2, 4)
    with pytest.raises(InputError) as caught:
        cls()
    return str(caught.value)


def test_job_of_another_size(tmp_path):
    assert run_on(2, config_job, tmp_path)[0] == (
        "GenModel: made for plan_ngpus=2 and runtime_ngpus=4 on mesh dp=1,tp=2; the job has 2 ranks"
    )


class Clash(rt.ParallelModule):
    mesh = rt.Mesh(tp=1)
    plan_ngpus = 1

    def __init__(self, init_params=True, build_buckets=True):
        super().__init__()
        self.reducers_ = torch.nn.Module()
        self._modules["mesh_"] = torch.nn.Module()
        self._modules["forward"] = torch.nn.Module()
        self.finish_init(init_params, build_buckets)


def test_names_that_clash():
    with pytest.raises(UnsupportedError, match="the model has an attribute 'forward', a name that"):
        Clash()
    with pytest.raises(RuntimeError, match="ParallelModule is a base"):
        rt.ParallelModule()


def test_constants():
    rt.check_constant("n", 3, 3)
    rt.check_constant("n", 1, True)
    rt.check_constant("n", None, None)
    with pytest.raises(InputError) as caught:
        rt.check_constant("n", 4, 3)
    assert str(caught.value) == (
        "forward: argument n is 4 and the program was made for 3; give that, or parallelize with "
        "the other value"
    )
    with pytest.raises(InputError, match="argument n is a tensor and"):
        rt.check_constant("n", torch.zeros(3), None)
    with pytest.raises(InputError, match="argument n is '3' and"):
        rt.check_constant("n", "3", 3)


def copy_job(folder):
    """A copy, as for averaged weights: values of its own, no buckets until asked for."""
    module = load("mix", make(Mix), folder, 1, 1)()
    twin = copy.deepcopy(module)
    x = inputs(1)[0]
    assert twin.u.weight is not module.u.weight and torch.equal(twin(x), module(x))
    assert twin.reducers == [] and twin.state_dict().keys() == module.state_dict().keys()
    with pytest.raises(RuntimeError, match=r"call build_buckets\(\) before training"):
        twin.sync_grad()
    twin.build_buckets()
    for m in (module, twin):
        m(x * (world_rank() + 1)).backward()
        m.sync_grad()
    return torch.equal(module.u.weight.grad, twin.u.weight.grad)


def test_copies(tmp_path):
    assert run_on(2, copy_job, tmp_path) == [True, True]
