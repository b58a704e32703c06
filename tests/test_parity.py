"""Plans of every model in the zoo equal the single device: searched, and forced in many ways."""

import json
import subprocess
import sys

import pytest

import zoo
from nnscaler import _core
from nnscaler.verify import verify
from plans import Archives, drawn, forced, launch

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Each model with its archive, exported once."""
    made = Archives(tmp_path_factory.mktemp("archives"))

    def get(name, **options):
        key = (name, *sorted(options.items()))
        return made.get(key, lambda: zoo.MODELS[name](**options))

    return get


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


def test_generated_code_is_formatted_and_clean(archives, tmp_path):
    for name in zoo.MODELS:
        _, _, _, archive = archives(name, batch=4)
        for seed in (1, 2):
            plan = _core.plan(
                archive,
                mesh="dp=2,tp=2",
                cluster="cpu",
                partitions=drawn(archive, [2, 2], seed),
                others_replicate=True,
            )
            for file, text in _core.emit(archive, plan).items():
                (tmp_path / f"{name}_{seed}_{file}").write_text(text)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--isolated"], ["format", "--isolated", "--check"]):
        done = subprocess.run([*ruff, *command, tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
