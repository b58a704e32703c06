"""The data-parallel, model-parallel and hybrid rules of a RetNet: obeyed, and equal to the single device."""

import json
from pathlib import Path

import pytest
from torch import nn

import nnscaler
import zoo
from nnscaler import _core
from nnscaler.verify import verify
from pool import run_on

RULES = Path(__file__).parent.parent / "examples" / "retnet"


class Outer(nn.Module):
    """LMDecoder inside another module."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens, labels):
        return self.decoder(tokens, labels) * 2


def names_of(plan, signature, module):
    return {
        (name := op["partition"][0]) and name
        for op in plan["operators"]
        if op["signature"] == signature and module in op["module"] and "rule" in op
    }


def planned(tmp_path, rules, mesh="dp=2", inside=False):
    module, args, kwargs = zoo.retnet()
    if inside:
        module = Outer(module)
    archive = tmp_path / "retnet.pt2"
    nnscaler.export(module, args, kwargs, archive)
    plan = _core.plan(str(archive), mesh=mesh, cluster="cpu", constraints=str(RULES / rules))
    return module, args, kwargs, plan


def is_equal(module, args, kwargs, plan):
    def launch(count, job, *arguments):
        run_on(count, job, *arguments, timeout=120)

    report = verify(module, args, kwargs, plan, launch=launch)
    assert report.equal, report.text()


@pytest.mark.parametrize("inside", [False, True])
def test_data_parallel(tmp_path, inside):
    module, args, kwargs, text = planned(tmp_path, "retnet_dp.yaml", inside=inside)
    plan = json.loads(text)
    matched = [op for op in plan["operators"] if "rule" in op]
    assert {op["rule"] for op in matched} == {0, 1, 2, 3, 4}
    for op in matched:
        first = op["annotation"].split("->")[0].split(",")[0].split()
        allowed = first[:2] if op["signature"] == "torch.matmul" else first[:1]
        assert op["partition"][0] in [name.strip("+^") for name in allowed], op
    is_equal(module, args, kwargs, text)


@pytest.mark.parametrize("rules", ["retnet_mp.yaml", "retnet_hybrid.yaml"])
def test_tensor_parallel_and_mixed(tmp_path, rules):
    module, args, kwargs, text = planned(tmp_path, rules, "tp=2")
    plan = json.loads(text)
    for op in plan["operators"]:
        if "rule" in op and op["signature"] == "torch.nn.functional.linear":
            weight = op["annotation"].split("->")[0].split(",")[1].split()[0].strip("+^")
            rows = op["annotation"].split()[0].strip("+^")
            data = rules == "retnet_hybrid.yaml" and "retention" in op["module"]
            assert op["partition"][0] == (rows if data else weight), op
    is_equal(module, args, kwargs, text)


def test_on_four_ranks(tmp_path):
    module, args, kwargs, text = planned(tmp_path, "retnet_dp.yaml", "dp=4")
    is_equal(module, args, kwargs, text)
