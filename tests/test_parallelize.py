"""`parallelize` as its users call it: whole models and parts, rules and policies, files and errors."""

import re
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import nnscaler
import zoo
from nnscaler import ComputeConfig, parallelize
from nnscaler.policies import OpPartition, OpPlan, get_pas_ops
from nnscaler.profiler.timer import CudaTimer
from pool import run_on


def two_linears_job(how, directory):
    from examples.two_linears import parallel_model

    model = parallel_model(how, directory)
    optimizer = nnscaler.build_optimizer(model, torch.optim.SGD, lr=0.1)
    CudaTimer(enable=True, predefined=True).clear()
    losses = []
    for step in range(3):
        torch.manual_seed(step)
        loss = model(torch.randn(4, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    collectives = CudaTimer().summary()["collectives"]
    calls = {name: field["calls"] for name, field in collectives.items()}
    CudaTimer(enable=False, predefined=False).clear()
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    code = (Path(model.middle.module_dir) / "gencode0.py").read_text()
    return losses, shapes, calls, code


def single_losses():
    from examples.two_linears import Model

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        torch.manual_seed(step)
        loss = model(torch.randn(4, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", ["rules", "policy"])
def test_two_linears_split_as_asked(tmp_path, how, ranks):
    results = run_on(ranks, two_linears_job, how, str(tmp_path))
    expected = single_losses()
    for losses, shapes, calls, code in results:
        assert losses == pytest.approx(expected, rel=1e-5)
        assert shapes["middle.fc1.weight"] == [32 // ranks, 16]
        assert shapes["middle.fc2.weight"] == [16, 32 // ranks]
        assert shapes["stem.weight"] == [16, 8]  # the rest is untouched
        between = code[code.index("self.fc1.weight,") if "self.fc1.weight," in code else 0 :]
        forward = code[code.index("def rank_forward") :]
        assert f"({32 // ranks}, 16)" in code and f"(16, {32 // ranks})" in code
        first, second = forward.index("self.fc1.weight"), forward.index("self.fc2.weight")
        assert "rt.redistribute" not in forward[first:second], between
        assert len(re.findall(r"rt\.all_reduce\(", forward[second:])) == 1
        # one all-reduce forward after the second; one backward for the gradient of the input
        assert calls["all_reduce(tp)"] == 2 * 3


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Linear(16, 64)
        self.d = nn.Linear(64, 16)

    def forward(self, x):
        return x + self.d(torch.nn.functional.gelu(self.u(x)))


class Whole(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.body = body
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(self.stem(x))).square().mean()


def part_of_a_model_job(directory, policy):
    torch.manual_seed(3)
    whole = Whole(Mlp())
    whole.body = parallelize(
        whole.body, {"x": torch.randn(4, 16)}, policy, ComputeConfig(2, 4), gen_savedir=directory
    )
    optimizer = nnscaler.build_optimizer(whole, torch.optim.Adam, lr=0.01)
    unit = dist.get_rank() // 2
    losses = []
    for step in range(3):
        torch.manual_seed(100 + step)
        batch = torch.randn(8, 8)[4 * unit : 4 * unit + 4]
        loss = whole(batch)
        loss.backward()
        norm = optimizer.clip_gnorm(0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item(), norm.item()))
    return losses, whole.state_dict(), optimizer.state_dict()


@pytest.mark.parametrize("policy", ["tp", "data", "autodist"])
def test_part_of_a_model_in_two_copies(tmp_path, policy):
    results = run_on(4, part_of_a_model_job, str(tmp_path), policy)
    torch.manual_seed(3)
    model = Whole(Mlp())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(3):
        torch.manual_seed(100 + step)
        batch = torch.randn(8, 8)
        loss = sum(model(batch[i : i + 4]) for i in (0, 4))  # summed over copies, not averaged
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        assert results[0][0][step][0] + results[2][0][step][0] == pytest.approx(
            loss.item(), rel=1e-4
        )
        for rank in range(4):
            assert results[rank][0][step][1] == pytest.approx(norm.item(), rel=1e-4)
    merged, state = nnscaler.merge_state_dicts([r[1] for r in results], [r[2] for r in results])
    other = Whole(Mlp())
    other.load_state_dict(merged, strict=True)
    for (name, a), b in zip(other.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    torch.optim.Adam(other.parameters()).load_state_dict(state)


def class_job(directory):
    made = parallelize(
        zoo.MLP,
        {"x": torch.randn(8, 16)},
        "data",
        ComputeConfig(2, 2),
        gen_savedir=directory,
        module_fn=lambda: zoo.mlp()[0],
    )
    module = made()
    return made.__name__, issubclass(made, nnscaler.ParallelModule), module(zoo.mlp()[1][0]).item()


def test_class_gives_a_class(tmp_path):
    module, args, _ = zoo.mlp()
    for name, is_parallel, loss in run_on(2, class_job, str(tmp_path)):
        assert (name, is_parallel) == ("MLP", True)
        assert loss == pytest.approx(module(*args).item(), rel=1e-6)


class Changing(nn.Module):
    gelu = False

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        h = self.l(x)
        return (torch.nn.functional.gelu(h) if self.gelu else h.relu()).sum()


def write_only(directory, reuse="match", sample=4, module=None, **pas_config):
    return parallelize(
        module or Changing(),
        {"x": torch.randn(sample, 8)},
        "autodist",
        ComputeConfig(2, 2, pas_config=pas_config),
        gen_savedir=directory,
        load_module=False,
        reuse=reuse,
    )


def test_changed_model_is_noticed(tmp_path, monkeypatch):
    write_only(tmp_path)
    out = next(tmp_path.rglob("gencode0.py"))
    mine = out.parent / "notes.txt"
    mine.write_text("mine")
    before = out.stat().st_mtime_ns
    write_only(tmp_path)
    assert out.stat().st_mtime_ns == before  # reused
    with pytest.raises(nnscaler.InputError, match=r"made from something else \(model"):
        write_only(tmp_path, sample=6)
    with pytest.raises(nnscaler.InputError, match=r"\(compute config, constraints differ\)"):
        rules = tmp_path / "rules.yaml"
        rules.write_text("- {name: torch.nn.functional.linear, allowed_partition_dims: ['1,0']}\n")
        write_only(tmp_path, partition_constraints_path=str(rules))
    monkeypatch.setattr(Changing, "gelu", True)
    with pytest.raises(nnscaler.InputError, match=r"made from something else \(model"):
        write_only(tmp_path)
    write_only(tmp_path, "override")
    assert "gelu" in out.read_text()
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda d: parallelize(
                Mlp(), {"x": torch.randn(4, 16)}, "tpp", ComputeConfig(2, 2), load_module=False
            ),
            "Invalid pas_policy: 'tpp'; it is one of autodist, dp, tp, data, pp, hybrid, fsdp, or a function",
        ),
        (
            lambda d: parallelize(
                Mlp(), {"x": torch.randn(4, 16)}, "dp", ComputeConfig(2, 2), gen_savedir=d,
                load_module=False,
            ),
            "policy dp: plan_ngpus is 2; it must be 1",
        ),
        (
            lambda d: write_only(d, mesh="dp=2,tp=2"),
            "pas_config: mesh 'dp=2,tp=2' has 4 devices and plan_ngpus is 2; they must agree",
        ),
        (
            lambda d: write_only(d, mem_constrain=3),
            "pas_config: unknown key 'mem_constrain'; did you mean mem_constraint?",
        ),
    ],
)  # fmt: skip
def test_wrong_calls(tmp_path, call, message):
    with pytest.raises(nnscaler.InputError) as raised:
        call(tmp_path)
    assert str(raised.value) == message
    assert not list(tmp_path.rglob("gencode*.py"))


def test_policies_are_checked_when_applied(tmp_path):
    def at(input_, dim):
        def policy(graph, cfg):
            for op in get_pas_ops(graph):
                if op.fqn == "u":
                    yield OpPlan(op, partition=OpPartition(input_, dim))

        return policy

    def run(policy):
        parallelize(
            Mlp(), {"x": torch.randn(3, 16)}, policy, ComputeConfig(2, 2), gen_savedir=tmp_path,
            load_module=False,
        )  # fmt: skip

    with pytest.raises(
        nnscaler.InputError, match=r"its input 0 has dimensions 0 to 1; its annotation"
    ):
        run(at(0, 7))
    with pytest.raises(
        nnscaler.InputError, match=r"has length 3, which 2 devices do not share evenly"
    ):
        run(at(0, 0))
    run(at(1, 0))


def end2end_job(directory):
    module, args, _ = zoo.mlp()
    made = parallelize(
        module,
        {"x": args[0]},
        "data",
        ComputeConfig(2, 2, use_end2end=True, use_async_reducer=True),
        gen_savedir=directory,
    )
    optimizer = nnscaler.build_optimizer(made, torch.optim.SGD, lr=0.1)
    losses = made.train_step([args[0], args[0] * 2])
    optimizer.step()
    optimizer.zero_grad()
    return [x.item() for x in losses], [x.item() for x in made.infer_step([args[0]])]


def test_end_to_end(tmp_path):
    module, args, _ = zoo.mlp()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = [module(args[0]), module(args[0] * 2)]
    sum(losses).backward()
    optimizer.step()
    for got, after in run_on(2, end2end_job, str(tmp_path)):
        assert got == pytest.approx([x.item() for x in losses], rel=1e-5)
        assert after == pytest.approx([module(args[0]).item()], rel=1e-5)


def timer_job(directory):
    import contextlib
    import io

    module, args, _ = zoo.mlp(batch=8)
    model = parallelize(module, {"x": args[0]}, "data", ComputeConfig(2, 2), gen_savedir=directory)
    data_iter = [(i, args[0]) for i in range(2)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for i, batches in data_iter:  # noqa: B007
            CudaTimer().clear()
            CudaTimer(enable=True, predefined=True).start("e2e")
            loss = model(batches)
            CudaTimer().stop("e2e")
            CudaTimer().print_all(times=1, rank_only=0)
    del loss
    CudaTimer(enable=False, predefined=False).clear()
    return printed.getvalue()


def test_the_timer_as_users_write_it(tmp_path):
    first, second = run_on(2, timer_job, str(tmp_path))
    assert second == ""
    lines = [line for line in first.splitlines() if line.startswith("rank [0]: ")]
    assert len(lines) == 2
    assert first.count("  all_reduce(dp): ") == 2
    for field in ("e2e", "comm", "all_reduce(dp)", "exposed"):
        assert re.search(rf"(^|[ :|]){re.escape(field)} : \d+\.\d\d ms", lines[1]), (
            field,
            lines[1],
        )


def eval_job(directory):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    x = torch.randn(4, 8)
    made = parallelize(module, {"input": x}, "data", ComputeConfig(2, 2), gen_savedir=directory)
    made(x)
    module(x)
    made.eval()
    module.eval()
    buffers = {k: v.clone() for k, v in made.named_buffers()}
    first, second = made(x), made(x)
    for name, value in made.named_buffers():
        assert torch.equal(value, buffers[name]), name
    assert torch.equal(first, second)
    torch.testing.assert_close(first, module(x))
    made.train()
    assert not torch.equal(made(x), made(x))


def test_eval_does_what_it_does_on_the_original(tmp_path):
    run_on(2, eval_job, str(tmp_path))


def dropout_job(directory):
    class DropMlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.u = nn.Linear(8, 64)
            self.d = nn.Linear(64, 64)

        def forward(self, x):
            return nn.functional.dropout(self.d(nn.functional.dropout(self.u(x), 0.5)), 0.5)

    def policy(graph, cfg):
        for op in get_pas_ops(graph):
            if op.fqn in ("u", "d"):
                yield OpPlan(op, partition=OpPartition(1, 0 if op.fqn == "u" else 1))
            elif op.signature.endswith("dropout") and op.cid < 3:
                yield OpPlan(op, partition=OpPartition(0, 1))

    torch.manual_seed(0)
    DropMlp.__qualname__ = "DropMlp"
    made = parallelize(
        DropMlp(), {"x": torch.ones(4, 8)}, policy, ComputeConfig(2, 2), gen_savedir=directory
    )
    return made(torch.ones(4, 8)).detach()


def test_dropout_on_a_replicated_value_is_alike(tmp_path):
    first, second = run_on(2, dropout_job, str(tmp_path))
    assert torch.equal(first, second)
    assert (first == 0).any() and (first != 0).any()


def failing_job(directory):
    class Branch(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    try:
        parallelize(
            Branch(), {"x": torch.randn(4)}, "data", ComputeConfig(2, 2), gen_savedir=directory
        )
    except nnscaler.InputError as error:
        return str(error)
    return "nothing"


def test_an_error_on_one_rank_is_an_error_on_all():
    with tempfile.TemporaryDirectory() as directory:
        messages = run_on(2, failing_job, directory)
        assert all("if x.sum() > 0" in message for message in messages), messages
        assert "rank 0" in messages[1]
        assert not list(Path(directory).rglob("gencode*.py"))


TABLE = [float(i % 7) for i in range(100)]


class Literal(nn.Module):
    """Multiplies by a tensor too long to be written out in generated code."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 100)

    def forward(self, x):
        return (self.l(x) * torch.tensor(TABLE)).square().mean()


def literal_job(directory):
    torch.manual_seed(0)
    module, x = Literal(), torch.ones(4, 8)
    expected = module(x).item()
    made = parallelize(module, {"x": x}, "data", ComputeConfig(2, 2), gen_savedir=directory)
    return expected, made(x).item(), [k for k in made.state_dict() if "CUBE" not in k]


def test_long_tensor_literals_are_loaded(tmp_path):
    for expected, got, names in run_on(2, literal_job, str(tmp_path)):
        assert got == pytest.approx(expected, rel=1e-6)
        assert names == ["l.weight", "l.bias"]
