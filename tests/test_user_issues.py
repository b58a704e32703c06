"""What users of such tools run into: each model under searched, demanded and drawn plans equals the single device."""

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn

import nnscaler
import user_cases as uc
from nnscaler import _core
from nnscaler.verify import verify
from plans import Archives, drawn, forced, launch, rules
from pool import run_on

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Each model of a case with its archive, exported once."""
    made = Archives(tmp_path_factory.mktemp("archives"))

    def get(make):
        torch.manual_seed(0)
        return made.get(make, make)

    return get


def linear(*sizes, bias=True):
    return nn.Linear(*sizes, bias=bias)


def weight(*shape):
    return nn.Parameter(torch.randn(shape) * 0.1)


def of(net, *args, **parts):
    return net(**parts), args, {}


def ids(limit, *shape):
    return torch.randint(0, limit, shape)


def ignoring():
    i = ids(16, 4, 6)
    y = i.clone()
    y[0, 1:] = -100
    y[1] = -100  # on 4 ranks, one has no label
    return of(uc.Ignoring, i, y, e=nn.Embedding(16, 8), h=linear(8, 16))


def grouped(native):
    parts = {"q": 32, "k": 8, "v": 8, "o": 32}
    made = {name: linear(32, size, bias=False) for name, size in parts.items()}
    return of(uc.Grouped, torch.randn(2, 6, 32), native=native, **made)


def decoder():
    def layer():
        attention = uc.Attention(**{name: linear(8, 8) for name in "qkvo"})
        mlp = uc.Mlp(up=linear(8, 32), act=nn.GELU(), down=linear(32, 8))
        return uc.DecoderLayer(attention=attention, mlp=mlp)

    layers = nn.ModuleList(layer() for _ in range(2))
    return of(
        uc.Decoder, ids(16, 4, 6), embed=nn.Embedding(16, 8), layers=layers, head=linear(8, 16)
    )


def one_expert_without_a_token():
    module, args, kwargs = uc.moe(uc.SparseMoe)
    with torch.no_grad():
        module.r.bias[2] = -100.0
    return module, args, kwargs


def feed(batch, *sizes):
    return of(uc.Feed, torch.randn(batch, sizes[0]), u=linear(*sizes[:2]), d=linear(*sizes[1:]))


BOTH = ("tp=2", "tp=4")
# case: model, rule sets that a plan must obey, meshes that they are for
CASES = {
    "2 own backward": (uc.quant, [["linear: 1,0"], ["linear: 0,0"], ["linear: 0,1"]], BOTH),
    "2 two results in a region": (lambda: uc.quant(uc.QuantTwice), [["linear: 1,0"]], BOTH),
    "3 experts take rows": (
        one_expert_without_a_token,
        [["linear @ r: 0,0"], ["linear @ r: 1,0"], ["linear @ e: 1,0"], ["linear @ e: 0,1"]],
        BOTH,
    ),
    "3 dense experts": (
        lambda: uc.moe(uc.DenseMoe),
        [["linear: 0,0"], ["linear: 1,0"], ["linear @ r: 0,1", "torch.where: 1,1"]],
        BOTH,
    ),
    "4 regions": (uc.checkpointed, [["linear @ u: 1,0", "linear @ d: 1,1"]], BOTH),
    "5 autocast": (
        uc.autocast,
        [["linear @ a: 1,0"], ["linear @ a: 0,0", "torch.amax: 0,0"], ["torch.amax: 0,1"]],
        BOTH,
    ),
    "8 tie": (
        uc.tied,
        [["embedding: 1,0", "linear: 1,0"], ["embedding: 1,1", "linear: 1,0"], ["linear: 0,2"]],
        BOTH,
    ),
    "9 dict": (lambda: uc.head("dict"), [["linear: 1,0"]], BOTH),
    "10 literal": (uc.literal, [["linear: 1,0", "torch.mul: 0,1"], ["torch.mul: 1,0"]], BOTH),
    "11 fused": (
        lambda: of(uc.Fused, torch.randn(2, 6, 16), qkv=linear(16, 48), o=linear(16, 16)),
        [["linear @ qkv: 1,0"], ["linear @ qkv: 1,0", "scaled_dot_product_attention: 0,1"]],
        BOTH,
    ),
    "12 inferred view": (
        lambda: of(uc.InferredView, torch.randn(2, 6, 16), q=linear(16, 16, bias=False)),
        [["linear: 1,0"], ["linear: 1,0", "torch.transpose: 0,2"]],
        BOTH,
    ),
    "12 inferred view, rows": (
        lambda: of(uc.InferredView, torch.randn(4, 8, 16), q=linear(16, 16, bias=False)),
        [["linear: 0,1", "torch.transpose: 0,1"], ["linear: 0,0"]],
        BOTH,
    ),
    "13 grouped": (
        lambda: grouped(False),
        [["linear @ q: 1,0"], ["linear: 1,0"], ["scaled_dot_product_attention: 0,1"]],
        BOTH,
    ),
    "13 grouped in one": (lambda: grouped(True), [["linear @ q: 1,0"], ["linear: 1,0"]], BOTH),
    "14 odd": (lambda: feed(6, 8, 10, 8), [["linear @ d: 1,0"], ["linear @ u: 0,1"]], BOTH),
    "15 scatter": (
        lambda: of(uc.Scatter, torch.randn(4, 8), torch.tensor([15, 3, 8, 0]), l=linear(8, 8)),
        [["linear: 1,0"], ["linear: 0,0"], ["torch.mul: 0,0"], ["torch.mul: 0,1"]],
        BOTH,
    ),
    "16 ignored labels": (
        ignoring,
        [["cross_entropy: 0,0"], ["linear: 0,0"], ["linear: 1,0"]],
        ("tp=2", "tp=4", "dp=2,tp=2"),
    ),
    "18 tensor by keyword": (
        lambda: (uc.Scaled(), (torch.randn(4, 8),), {}),
        [["user_cases.scaled: 0,0"], ["user_cases.scaled: 0,1"], ["user_cases.scaled: 1,0"]],
        BOTH,
    ),
    "19 in place": (
        lambda: of(uc.InPlace, torch.randn(4, 8), torch.rand(4, 8) > 0.5, l=linear(8, 8)),
        [],
        (),
    ),
    "21 batch norm": (
        lambda: of(
            uc.Bn,
            torch.randn(4, 3, 6, 6) * torch.arange(1.0, 5.0)[:, None, None, None],
            c=nn.Conv2d(3, 8, 3, padding=1),
            bn=nn.BatchNorm2d(8),
        ),
        [["conv2d: 0,0"], ["conv2d: 1,0"]],
        BOTH,
    ),
    "22 auxiliary loss": (
        lambda: of(
            uc.Aux,
            torch.randn(12, 8),
            r=linear(8, 4, bias=False),
            w1=weight(4, 8, 16),
            w2=weight(4, 16, 8),
        ),
        [["torch.einsum: 0,0", "linear: 0,0"], ["torch.einsum: 1,0"], ["torch.mean: 0,0"]],
        ("tp=2", "tp=4", "dp=2,tp=2"),
    ),
    "23 what a policy leaves open": (
        lambda: of(
            uc.Mha,
            torch.randn(3, 5, 16),
            torch.randn(3, 11, 16),
            **{name: linear(16, 16) for name in "qkvo"},
        ),
        [["linear @ q: 1,0"], ["linear @ o: 1,1"], ["linear @ k: 0,2"]],
        BOTH,
    ),
    "24 rare": (
        lambda: of(uc.Rare, torch.randn(4, 8), l=linear(8, 8)),
        [["linear: 1,0"], ["linear: 0,0"]],
        BOTH,
    ),
    "25 one part": (
        decoder,
        [
            ["linear @ Mlp: 1,0 1,1", "linear @ layers.*.attention: 0,0"],
            ["cube.runtime.function.embedding: 1,1", "torch.matmul: 0,0"],
            ["torch.matmul: 0,1", "linear @ mlp.up: 1,0", "linear @ mlp.down: 1,1"],
        ],
        ("tp=2",),
    ),
    "30 rules that do not fit": (
        lambda: feed(64, 16, 16, 16),
        [["linear @ u: 1,0", "linear @ d: 0,0"], ["linear @ u: 0,1", "linear @ d: 1,0"]],
        ("tp=4", "dp=2,tp=2"),
    ),
    "31 registered": (
        lambda: of(uc.Routed, torch.randn(16, 8), l=linear(8, 8), w=weight(8, 4)),
        [["user_cases.gate_of: 0,0"], ["user_cases.dispatch: 0,0"], ["user_cases.dispatch: 0,1"]],
        BOTH,
    ),
    "38 two readers": (
        lambda: of(uc.TwoReaders, torch.randn(8, 8), w=weight(8, 8), b=linear(8, 8, bias=False)),
        [["torch.matmul: 0,0", "linear: 0,0"], ["torch.matmul: 1,1"], ["torch.matmul: 1,0"]],
        BOTH,
    ),
    "42 strides": (
        lambda: of(uc.Strided, torch.randn(2, 3, 8), l=linear(8, 12), o=linear(36, 4)),
        [["linear @ l: 1,0"], ["linear @ l: 0,2"], ["linear @ o: 0,1"], ["linear @ o: 1,0"]],
        BOTH,
    ),
    "42 strides on 3": (
        lambda: of(uc.Strided, torch.randn(2, 3, 8), l=linear(8, 12), o=linear(36, 4)),
        [["linear @ l: 1,0"], ["linear @ l: 0,1"]],
        ("tp=3",),
    ),
    "44 mixed layouts": (
        lambda: of(
            uc.Mix,
            torch.randn(8, 8),
            n=nn.LayerNorm(8),
            u=linear(8, 32),
            d=linear(32, 8),
            t=weight(),
        ),
        [["linear @ u: 1,0", "linear @ d: 1,1"], ["torch.mul: 0,0"], ["torch.mul: 0,1"]],
        ("tp=2", "dp=2,tp=2"),
    ),
    "46 unused": (
        lambda: of(
            uc.Unused,
            torch.randn(4, 8),
            a=linear(8, 8),
            unused=linear(8, 8),
            e=nn.Embedding(4, 8),
        ),
        [["linear: 0,0"], ["linear: 1,0"]],
        BOTH,
    ),
    "50 sequence": (
        lambda: of(
            uc.Sequenced,
            torch.randn(2, 4, 8),
            n=nn.LayerNorm(8),
            l=linear(8, 8),
            f=nn.LayerNorm(8),
        ),
        [["layer_norm: 0,1", "linear: 0,1", "torch.cumsum: 0,1"], ["layer_norm: 0,1"]],
        BOTH,
    ),
    "52 vocabulary": (
        lambda: of(uc.Lookup, ids(13, 2, 6), e=nn.Embedding(13, 8), h=linear(8, 13)),
        [["embedding: 1,1"], ["linear: 0,2"]],
        BOTH,
    ),
    "55 counter": (
        lambda: (uc.Counting(), (ids(12, 2, 5),), {}),
        [["embedding: 1,0"], ["linear @ blk: 1,0"], ["linear @ head: 1,1"]],
        BOTH,
    ),
    "56 table": (
        uc.rope,
        [["linear: 1,0", "torch.mul: 0,2"], ["linear: 0,1"], ["torch.mul: 1,1"]],
        BOTH,
    ),
}


def difference(made, **plan_options):
    """What differs under a plan, '' if nothing does."""
    module, args, kwargs, archive = made
    plan = _core.plan(archive, cluster="h100-80gb", **plan_options)
    report = verify(module, args, kwargs, plan, steps=2, launch=launch)
    return "" if report.equal else report.text()


@pytest.mark.parametrize("case", CASES)
def test_equal_to_one_device(archives, tmp_path, case):
    make, rule_sets, meshes = CASES[case]
    made = archives(make)
    archive = made[-1]
    file = tmp_path / "rules.yaml"
    tries = {"searched": {"mesh": "dp=2,tp=2"}}
    tries["data"] = {
        "mesh": "dp=2",
        "partitions": forced(archive, "data", 2),
        "others_replicate": True,
    }
    for seed in range(3):
        tries[f"drawn {seed}"] = {
            "mesh": "tp=2",
            "partitions": drawn(archive, [2], seed),
            "others_replicate": True,
        }
    for rule_set in rule_sets:
        for mesh in meshes:
            tries[f"{', '.join(rule_set)} on {mesh}"] = {"mesh": mesh, "rules": rule_set}
    wrong = []
    for name, options in tries.items():
        if "rules" in options:
            options["constraints"] = rules(file, *options.pop("rules"))
        try:
            found = difference(made, **options)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            wrong.append(f"{name}: {found}")
    assert not wrong, "\n" + "\n".join(wrong)


NO_CHOICE = "{file}:1:3: rule for torch.nn.functional.linear leaves "
SHARE = (
    "cannot share evenly; allow another dimension or replica_allowed: true, or take another mesh"
)
IN_PLACE = (
    "it touches memory that is written in place, and stays whole on every device; "
    "allow replication, or write the model without the write in place"
)
# case, mesh, rules, the whole message
REFUSED = [
    (
        "14 odd",
        "tp=4",
        ["linear @ u: 1,0"],
        NO_CHOICE + "u (user_cases.py:{Feed}) no choice: n is 10 long, which 4 devices " + SHARE,
    ),
    (
        "16 ignored labels",
        "dp=2,tp=2",
        ["linear: 0,1"],
        NO_CHOICE
        + "h (user_cases.py:{Ignoring}) no choice: b is 6 long, which axes of 2 and 2 devices "
        + SHARE,
    ),
    (
        "15 scatter",
        "tp=2",
        ["torch.index_put: 0,0"],
        '{file}:1:52: rule for torch.index_put allows "0,0", but a in "a^ b, 4, 4 b -> a^ b" may '
        'not be split: indices point into the whole of it; write "0,1"',
    ),
    (
        "19 in place",
        "tp=2",
        ["linear: 1,0"],
        '{file}:1:3: the rule torch.nn.functional.linear: "1,0", not replicated leaves '
        "torch.nn.functional.linear of l (user_cases.py:{InPlace}) no choice: " + IN_PLACE,
    ),
    (
        "21 batch norm",
        "tp=2",
        ["batch_norm: 0,1"],
        '{file}:1:3: the rule torch.nn.functional.batch_norm: "0,1", not replicated leaves '
        "torch.nn.functional.batch_norm of bn (user_cases.py:{Bn}) no choice: " + IN_PLACE,
    ),
    (
        "31 registered",
        "tp=2",
        ["user_cases.gate_of: 0,1"],
        '{file}:1:55: rule for user_cases.gate_of allows "0,1", but e in "c e^, e^ m^ -> c m^" may '
        'not be split: marked ^; write "0,0"',
    ),
    (
        "31 registered",
        "tp=2",
        ["user_cases.scaled: 0,0"],
        "{file}:1:10: rule matches nothing: the model calls no operator user_cases.scaled; it calls "
        "torch.nn.functional.linear, torch.pow, torch.sum, user_cases.dispatch and user_cases.gate_of",
    ),
    (
        "52 vocabulary",
        "tp=4",
        ["linear @ h: 1,0"],
        NO_CHOICE + "h (user_cases.py:{Lookup}) no choice: n is 13 long, which 4 devices " + SHARE,
    ),
]


def first_line(cls):
    """The line of the first statement of a model's forward."""
    return cls.forward.__code__.co_firstlineno + 1


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row[0]}, {row[2][0]}")
def test_rules_that_cannot_be_obeyed(archives, tmp_path, row):
    case, mesh, texts, message = row
    file = rules(tmp_path / "rules.yaml", *texts)
    lines = {
        name: first_line(getattr(uc, name))
        for name in ("Feed", "Ignoring", "InPlace", "Bn", "Lookup")
    }
    with pytest.raises(nnscaler.InputError) as raised:
        _core.plan(archives(CASES[case][0])[-1], mesh=mesh, cluster="h100-80gb", constraints=file)
    assert str(raised.value) == message.format(file=file, **lines)


def planned(archive, mesh, **options):
    return json.loads(_core.plan(archive, mesh=mesh, cluster="h100-80gb", **options))


def test_regions_are_recomputed(archives):
    archive = archives(uc.checkpointed)[-1]
    plan = _core.plan(archive, mesh="tp=1", cluster="h100-80gb")
    # 4 x 16 between the regions, not the 4 x 64 within
    assert json.loads(plan)["memory_bytes"]["activations"] <= 4 * (4 * 16 * 4)
    assert "rt.checkpoint(" in _core.emit(archive, plan)["gencode0.py"]


def test_rules_that_do_not_fit_meet_in_one_all_to_all(archives, tmp_path):
    make, rule_sets, _ = CASES["30 rules that do not fit"]
    file = rules(tmp_path / "rules.yaml", *rule_sets[0])
    plan = planned(archives(make)[-1], "tp=4", constraints=file)
    between = [r for r in plan["redistributions"] if r["reader"] in (1, 2)]
    assert [(r["from"], r["to"]) for r in between] == [(["S1"], ["S0"])]
    assert [step["step"] for step in between[0]["forward"]] == ["all-to-all"]


def test_deep_models_are_proven_optimal(archives):
    for depth in (4, 128):

        def deep(depth=depth):
            layers = (
                uc.Residual(n=nn.LayerNorm(64), u=linear(64, 256), d=linear(256, 64))
                for _ in range(depth)
            )
            return of(uc.Deep, torch.randn(8, 16, 64), ls=nn.ModuleList(layers), h=linear(64, 100))

        certificate = planned(archives(deep)[-1], "tp=8")["certificate"]
        assert certificate["gap"] == 0
        assert certificate["distinct_products"] < 20  # equal layers cost one


def test_equal_choices_are_made_alike(tmp_path):
    plans = []
    for _ in range(2):
        side = uc.Side(ls=nn.ModuleList(linear(16, 16) for _ in range(4)))
        torch.manual_seed(0)
        for p in side.parameters():
            nn.init.zeros_(p)
        nnscaler.export(side, (torch.zeros(8, 16),), {}, tmp_path / "side.pt2")
        plans.append(_core.plan(str(tmp_path / "side.pt2"), mesh="dp=2,tp=4", cluster="cpu"))
    assert plans[0] == plans[1]


def test_memory_adds_up_as_by_hand(archives):
    def mlp():
        up, down = linear(1024, 4096, bias=False), linear(4096, 1024, bias=False)
        return of(uc.Mlp, torch.randn(256, 1024), up=up, act=nn.GELU(), down=down)

    memory = planned(archives(mlp)[-1], "tp=1")["memory_bytes"]
    assert [memory[k] >> 20 for k in ("parameters", "gradients", "optimizer")] == [32, 32, 64]
    assert memory["activations"] == (1 + 4 + 4) << 20  # x, what gelu reads and what it gives


def test_budget_is_kept_or_refused(archives):
    def big():
        return of(
            uc.Chain, torch.randn(16, 1024), ls=nn.ModuleList(linear(1024, 1024) for _ in range(8))
        )

    archive = archives(big)[-1]
    for budget in (80_000_000, 200_000_000):
        assert planned(archive, "tp=2", memory_bytes=budget)["memory_bytes"]["total"] <= budget
    with pytest.raises(nnscaler.InfeasibleError) as raised:
        planned(archive, "tp=2", memory_bytes=40_000_000)
    assert str(raised.value) == (
        "no plan fits: the least found needs 66.6 MiB a device (parameters 16.0 MiB, gradients 16.0 MiB, "
        "optimizer state 32.0 MiB, buffers 0 bytes, activations 448.0 KiB, working set 2.1 MiB) and the "
        "budget is 38.1 MiB, 28.5 MiB less; use more devices, recompute_modules, an optimizer with less "
        "state, or a smaller batch"
    )


def test_gradient_of_a_parameter_travels_once(archives, tmp_path):
    make, rule_sets, _ = CASES["38 two readers"]
    file = rules(tmp_path / "rules.yaml", *rule_sets[0])
    plan = planned(archives(make)[-1], "tp=4", constraints=file)
    sent = {r["parameter"]: (r["bytes"], r["sent_bytes"]) for r in plan["reductions"]}
    assert sent == {"w": (256, 384), "b.weight": (256, 384)}  # 2 * 3/4 of it


def training_job(directory, case, texts, copies):
    """Two steps of two microbatches each: losses, clipped norms and the rank's state."""
    torch.manual_seed(0)
    module, args, _ = CASES[case][0]()
    file = rules(f"{directory}/rules{dist.get_rank()}.yaml", *texts) if texts else None
    made = nnscaler.parallelize(
        module,
        {"x": args[0]},
        "autodist" if texts else "data",
        nnscaler.ComputeConfig(
            dist.get_world_size() // copies,
            dist.get_world_size(),
            pas_config={"partition_constraints_path": file} if texts else {},
        ),
        gen_savedir=directory,
    )
    optimizer = nnscaler.build_optimizer(made, torch.optim.AdamW, lr=0.01)
    unit = dist.get_rank() * copies // dist.get_world_size()
    found = []
    for step in range(2):
        for micro in range(2):
            torch.manual_seed(10 * step + micro)
            batches = torch.randn(copies, *args[0].shape)
            made(batches[unit]).backward()
        found.append(optimizer.clip_gnorm(0.1).item())
        optimizer.step()
        optimizer.zero_grad()
    return found, made.state_dict(), optimizer.state_dict()


@pytest.mark.parametrize(
    ("case", "texts", "ranks", "copies"),
    [
        ("44 mixed layouts", ["linear @ u: 1,0", "linear @ d: 1,1"], 2, 1),
        ("44 mixed layouts", ["linear @ u: 1,0", "linear @ d: 1,1"], 4, 2),
        ("46 unused", None, 2, 1),
        ("50 sequence", ["layer_norm: 0,1", "linear: 0,1"], 2, 1),
    ],
)
def test_clipped_and_accumulated(tmp_path, case, texts, ranks, copies):
    results = run_on(ranks, training_job, str(tmp_path), case, texts, copies)
    torch.manual_seed(0)
    module, args, _ = CASES[case][0]()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    norms = []
    for step in range(2):
        for micro in range(2):
            torch.manual_seed(10 * step + micro)
            for batch in torch.randn(copies, *args[0].shape):
                module(batch).backward()
        norms.append(nn.utils.clip_grad_norm_(module.parameters(), 0.1).item())
        optimizer.step()
        optimizer.zero_grad()
    for found, _, _ in results:
        assert found == pytest.approx(norms, rel=1e-5)
    merged, state = nnscaler.merge_state_dicts([r[1] for r in results], [r[2] for r in results])
    fresh = CASES[case][0]()[0]
    fresh.load_state_dict(merged, strict=True)
    for (name, a), b in zip(fresh.named_parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)
    torch.optim.AdamW(fresh.parameters()).load_state_dict(state)


def structure_job(directory):
    torch.manual_seed(0)
    module, args, _ = uc.head("dataclass")
    made = nnscaler.parallelize(
        module, {"b": args[0]}, "data", nnscaler.ComputeConfig(2, 2), gen_savedir=directory
    )
    out = made(*args)
    wrong = {"x": torch.randn(6, 8), "mask": torch.ones(6)}
    with pytest.raises(nnscaler.InputError) as raised:
        made(wrong)
    return (
        type(out).__name__,
        out.loss.item(),
        out.n.item(),
        module(*args).loss.item(),
        str(raised.value),
    )


def test_structures_come_back_and_shapes_are_checked(tmp_path):
    for kind, loss, n, expected, message in run_on(2, structure_job, str(tmp_path)):
        assert (kind, n) == ("Out", 4.0)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert message == (
            'forward: argument b["x"] has shape (6, 8) and the program was made for (4, 8); '
            "give that shape, or declare the extent as dynamic when parallelizing"
        )
