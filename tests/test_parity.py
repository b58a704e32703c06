"""Plans of every model in the zoo equal the single device: searched, and forced in many ways."""

import json
import random
from types import SimpleNamespace

import pytest

import nnscaler
import zoo
from nnscaler import _core, policies
from nnscaler.verify import verify
from pool import run_on

pytestmark = pytest.mark.timeout(600)


def launch(count, job, *arguments):
    run_on(count, job, *arguments, timeout=180)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Each model with its archive, exported once."""
    directory = tmp_path_factory.mktemp("archives")
    made = {}

    def get(name, **options):
        key = (name, *sorted(options.items()))
        if key not in made:
            module, args, kwargs = zoo.MODELS[name](**options)
            archive = directory / f"{len(made)}.pt2"
            nnscaler.export(module, args, kwargs, archive)
            made[key] = (module, args, kwargs, str(archive))
        return made[key]

    return get


def forced(archive, policy, devices, **pas_config):
    config = SimpleNamespace(plan_ngpus=devices, pas_config=pas_config)
    graph = policies.Graph(_core.operators(archive))
    return policies.partitions_of(policies.BUILT_IN[policy], graph, config)


def drawn(archive, sizes, seed):
    """A random partition on each of several axes, of names that all axes together divide."""
    draw = random.Random(seed)
    total = 1
    for size in sizes:
        total *= size
    result = {}
    for op in json.loads(_core.operators(archive))["operators"]:
        names = [n["name"] for n in op["names"] if n["splittable"] and n["extent"] % total == 0]
        if op["pinned"] or op["at_start"]:
            continue
        # One name on every axis, or one of them replicated: two names may meet in one dim.
        name = draw.choice([*names, "replicate"])
        result[op["op"]] = [draw.choice([name, "replicate"]) for _ in sizes]
    return result


def check(archives, name, mesh, plan_options, **options):
    module, args, kwargs, archive = archives(name, **options)
    plan = _core.plan(archive, mesh=mesh, cluster="h100-80gb", **plan_options(archive))
    report = verify(module, args, kwargs, plan, steps=2, launch=launch)
    assert report.equal, report.text()
    return json.loads(plan)


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "dp=2,tp=2"])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_searched_plan(archives, name, mesh):
    plan = check(archives, name, mesh, lambda archive: {}, batch=4)
    assert plan["certificate"]["gap"] == 0


@pytest.mark.parametrize("name", zoo.MODELS)
def test_data_plan(archives, name):
    check(
        archives,
        name,
        "dp=2",
        lambda a: {"partitions": forced(a, "data", 2), "others_replicate": True},
        batch=4,
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_random_tensor_plan(archives, name, seed):
    check(
        archives,
        name,
        "tp=2",
        lambda a: {"partitions": forced(a, "tp", 2, seed=seed), "others_replicate": True},
        batch=4,
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_random_plan_on_two_axes(archives, name, seed):
    check(
        archives,
        name,
        "dp=2,tp=2",
        lambda a: {"partitions": drawn(a, [2, 2], seed), "others_replicate": True},
        batch=4,
    )


@pytest.mark.parametrize("name", ["mlp", "gpt", "llama"])
def test_copies_of_a_plan(archives, name):
    check(archives, name, "tp=2", lambda a: {"units": 2}, batch=4)


@pytest.mark.parametrize("name", ["gpt", "bert", "vit"])
def test_sizes_that_do_not_divide(archives, name):
    plan = check(archives, name, "tp=4", lambda a: {}, batch=3)
    assert plan["certificate"]["gap"] == 0


def test_verify_notices_a_wrong_program(archives):
    module, args, kwargs, archive = archives("mlp", batch=4)
    plan = _core.plan(
        archive,
        mesh="tp=2",
        cluster="cpu",
        partitions=forced(archive, "tp", 2, seed=3),
        others_replicate=True,
    )

    def spoil(text):
        return text.replace("F.gelu(", "F.relu(")

    report = verify(module, args, kwargs, plan, launch=launch, edit=spoil)
    assert not report.equal
    assert report.first_operator.startswith("torch.nn.functional.gelu")
    assert "first operator that differs: torch.nn.functional.gelu" in report.text()


@pytest.mark.parametrize(
    ("name", "modules"),
    [("gpt", "Block"), ("gpt", "blocks.*.mlp, Attention"), ("llama", "LlamaMLP")],
)
def test_recomputed_modules(archives, name, modules):
    plan = check(archives, name, "dp=2,tp=2", lambda a: {"recompute_modules": modules}, batch=4)
    assert any("recompute" in op for op in plan["operators"])
    _, _, _, archive = archives(name, batch=4)
    kept = json.loads(_core.plan(archive, mesh="dp=2,tp=2", cluster="h100-80gb"))
    assert plan["memory_bytes"]["activations"] < kept["memory_bytes"]["activations"]
    code = _core.emit(archive, json.dumps(plan))["gencode0.py"]
    assert "rt.checkpoint(" in code
