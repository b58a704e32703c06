"""Runs what is emitted for a plan that splits nothing, beside the model that it was made from.

Outputs, gradients and buffers are compared in float64, in training and, where it is the same program, in evaluation. Every text
must be what `ruff format` leaves and pass `ruff check`, both with their default settings. Some are held to a golden file, which
NNSCALER_GOLDEN=1 rewrites.
"""

import ast
import copy
import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import nnscaler
import zoo
from core_binary import core_binary

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cases import CASES, Case, Names  # noqa: E402

REWRITE = bool(os.environ.get("NNSCALER_GOLDEN"))
GOLDEN = {"NestedLists", "RecomputedFunctions", "Structures", "ConstructorArguments", "Routers"}
DOUBLE = torch.float64
ZOO = {
    "two_linears": lambda: zoo.two_linears(dtype=DOUBLE),
    "gpt": lambda: zoo.gpt(dtype=DOUBLE, dropout=0.1, layers=3),
    "retnet": lambda: zoo.retnet(dtype=DOUBLE),
    "gpt2": lambda: zoo.gpt2(dtype=DOUBLE),
    "llama": lambda: zoo.llama(dtype=DOUBLE, tied=True),
    "llama_eager": lambda: zoo.llama(dtype=DOUBLE, attention="eager"),
    "bert": lambda: zoo.bert(dtype=DOUBLE),
    "vit": lambda: zoo.vit(dtype=DOUBLE),
}
ALL = CASES | {name: Case(make) for name, make in ZOO.items()}


def emitter() -> Path:
    """`emit_identity`: $NNSCALER_EMIT_IDENTITY, or beside the tests of the build."""
    if given := os.environ.get("NNSCALER_EMIT_IDENTITY"):
        return Path(given)
    return core_binary().parent / "tests" / "emit_identity"


def leaves(tree, path="") -> dict:
    """Path -> tensor or constant; containers by their type."""
    if dataclasses.is_dataclass(tree):
        items = {"." + f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
    elif isinstance(tree, dict):
        items = {f"[{key!r}]": value for key, value in tree.items()}
    elif isinstance(tree, (list, tuple)):
        items = {f"[{i}]": value for i, value in enumerate(tree)}
    else:
        return {path: tree}
    found = {path + "!": type(tree)}
    for key, value in items.items():
        found |= leaves(value, path + key)
    return found


def run(model: nn.Module, args: tuple, kwargs: dict) -> dict:
    """Runs forward and backward; returns forward's results."""
    torch.manual_seed(7)
    args, kwargs = copy.deepcopy((args, kwargs))
    results = leaves(model(*args, **kwargs))
    weights = torch.Generator().manual_seed(3)
    loss = torch.zeros((), dtype=DOUBLE)
    for value in results.values():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            loss = loss + (value * torch.randn(value.shape, generator=weights)).sum()
    if loss.requires_grad:
        loss.backward()
    return results


def difference(a: torch.Tensor, b: torch.Tensor, scale: float = 1e-6) -> float:
    """max|a - b| / max(max|b|, scale); infinity for unlike types or shapes."""
    a, b = a.detach(), b.detach()
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if torch.equal(a, b) or a.numel() == 0:
        return 0.0
    if not a.is_floating_point():
        return float("inf")
    return float((a - b).abs().max()) / max(float(b.abs().max()), scale)


def compare(model: nn.Module, generated: nn.Module, args: tuple, kwargs: dict, tolerance: float):
    """Holds results, gradients and buffers of the generated module to the model's."""
    for each in (model, generated):
        each.zero_grad(set_to_none=True)
    wanted, given = run(model, args, kwargs), run(generated, args, kwargs)
    assert list(given) == list(wanted)
    for path, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert difference(given[path], value) <= tolerance, f"result{path}"
            assert given[path].requires_grad == value.requires_grad, f"result{path}"
        else:
            assert given[path] == value, f"result{path}"
    parameters = dict(generated.named_parameters(remove_duplicate=False))
    gradients = [p.grad for p in model.parameters() if p.grad is not None and p.numel()]
    scale = 1e-6 * max([float(g.abs().max()) for g in gradients] or [1.0])
    for name, parameter in model.named_parameters(remove_duplicate=False):
        assert parameters[name].requires_grad == parameter.requires_grad, name
        want = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        have = torch.zeros_like(want) if parameters[name].grad is None else parameters[name].grad
        assert difference(have, want, scale) <= tolerance, f"gradient of {name}"
    buffers = dict(generated.named_buffers(remove_duplicate=False))
    for name, buffer in model.named_buffers(remove_duplicate=False):
        assert difference(buffers[name], buffer) <= tolerance, f"buffer {name}"


def emit(archive: Path, folder: Path) -> str:
    ran = subprocess.run([emitter(), archive, folder], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return (folder / "gencode0.py").read_text()


def lint(folder: Path, file: str = "gencode0.py") -> None:
    """Fails unless the file is as ruff's defaults want it."""
    for command in (["format", "--diff"], ["check"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", file],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def load(folder: Path, model: nn.Module) -> nn.Module:
    """The generated module with the model's weights, buffers and tensor attributes."""
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    others = dict(model.named_buffers(remove_duplicate=False))
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                others[f"{path}.{name}".removeprefix(".")] = value
    torch.save(state, folder / "fullmodel.pt.0")
    torch.save({k: v for k, v in others.items() if k not in state}, folder / "npbuffer.pt")
    name = f"generated_{folder.name}"  # inspect looks the class up
    spec = importlib.util.spec_from_file_location(name, folder / "gencode0.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GenModel()


SLOW = {"gpt2", "llama_eager", "bert", "vit", "TorchModules", "Recurrent"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ALL]
)
def test_identity(name, tmp_path):
    case = ALL[name]
    model, args, kwargs = case.make()
    archive = nnscaler.export(
        model, args, kwargs, tmp_path / "model.pt2", dynamic_shapes=case.dynamic
    )
    text = emit(archive, tmp_path)
    lint(tmp_path)
    if name in GOLDEN:
        golden = HERE / name / "gencode0.py"
        if REWRITE:
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(text)
        assert text == golden.read_text()
    reference = copy.deepcopy(model)
    generated = load(tmp_path, model)
    assert set(generated.state_dict()) - {"CUBE_EXTRA_STATE"} == set(model.state_dict())
    if case.other is not None:
        args, kwargs = case.other(), {}
    generated.train()
    compare(reference.train(), generated, args, kwargs, case.tolerance)
    if generated.eval_mode == "differs":
        with pytest.raises(NotImplementedError):
            generated.eval()
        return
    generated.eval()
    compare(reference.eval(), generated, args, kwargs, case.tolerance)


@pytest.mark.parametrize("file", sorted(HERE.glob("*/gencode*.py")), ids=lambda f: f.parent.name)
def test_golden_files_are_as_ruff_wants(file):
    ast.parse(file.read_text())
    lint(file.parent, file.name)


def test_names_that_generated_code_needs(tmp_path):
    archive = nnscaler.export(Names(), (torch.randn(4),), path=tmp_path / "model.pt2")
    ran = subprocess.run([emitter(), archive, tmp_path], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr == (
        "cases.Names.forward: its parameter F has a name that generated code needs itself; rename it\n"
    )
    assert not (tmp_path / "gencode0.py").exists()
