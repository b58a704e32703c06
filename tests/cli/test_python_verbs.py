"""The verbs that need PyTorch, on wrong input: one line on standard error, and nothing written."""

import json

import pytest

from nnscaler.cli.main import main

MODULE = """
import torch

def make():
    return torch.nn.Linear(4, 4), (torch.randn(2, 4),), {}

def other():
    return torch.nn.Sequential(torch.nn.Linear(4, 4)), (torch.randn(2, 4),), {}

def alone():
    return torch.nn.Linear(4, 4)

def stop():
    raise KeyboardInterrupt

number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "wrong_input_model.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        assert main(["export", "wrong_input_model:make", "-o", "model.pt2"]) == 0
        assert main(["plan", "model.pt2", "--mesh", "tp=2", "-o", "plan.json"]) == 0
        yield folder


CASES = [
    (
        "export nomodule:make -o m.pt2",
        "nomodule:make: nomodule cannot be imported: No module named 'nomodule'",
    ),
    (
        "export wrong_input_model -o m.pt2",
        "wrong_input_model: write pkg.mod:make, a module and a function in it",
    ),
    (
        "export wrong_input_model:mak -o m.pt2",
        "wrong_input_model:mak: wrong_input_model has no mak",
    ),
    ("export wrong_input_model:number -o m.pt2", "wrong_input_model:number: number is no function"),
    (
        "export wrong_input_model:alone -o m.pt2",
        "wrong_input_model:alone: must return (module, args, kwargs): a torch.nn.Module, a tuple and a dict of samples",
    ),
    (
        "export wrong_input_model:make -o none/m.pt2",
        "none/m.pt2: its directory does not exist; make it first",
    ),
    ("export wrong_input_model:make -o .", ".: is a directory; name a file, such as model.pt2"),
    (
        "verify wrong_input_model:make --plan none.json",
        "none.json: cannot be read: No such file or directory",
    ),
    (
        "verify wrong_input_model:make --plan wrong_input_model.py",
        "verify: this is no plan; make one with nnscaler plan",
    ),
    (
        "verify wrong_input_model:make --plan plan.json --archive none.pt2",
        "none.pt2: cannot be read: No such file or directory",
    ),
    (
        "verify wrong_input_model:other --plan plan.json",
        "verify: the plan is of torch.nn.modules.linear.Linear, whose weight this model has not; give the model that was "
        "planned",
    ),
    ("plan none.pt2 --mesh tp=2", "none.pt2: cannot be read: No such file or directory"),
]


@pytest.mark.parametrize("command, message", CASES, ids=[command for command, _ in CASES])
def test_wrong_input(folder, capfd, command, message):
    before = sorted(folder.iterdir())
    assert main(command.split()) == 1
    assert capfd.readouterr().err == f"nnscaler: {message}\n"
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == [
        path for path in before if path.name != "__pycache__"
    ]


def test_an_incomplete_plan(folder, capfd):
    plan = json.loads((folder / "plan.json").read_text())
    del plan["operators"]
    (folder / "part.json").write_text(json.dumps(plan))
    assert main("verify wrong_input_model:make --plan part.json".split()) == 1
    error = capfd.readouterr().err
    assert (
        error
        == 'nnscaler: plan.json: "operators" is missing; make the plan again with nnscaler plan\n'
    )


def test_interrupted(folder, capfd):
    assert main("export wrong_input_model:stop -o m.pt2".split()) == 130
    assert capfd.readouterr() == ("", "")
    assert not (folder / "m.pt2").exists()
