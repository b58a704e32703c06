"""The planner's optimum against an ILP solver (HiGHS) on real models."""

import json
import subprocess

import highspy
import numpy as np
import pytest

import nnscaler
import zoo
from core_binary import core_binary


def optimum(problem: dict) -> float:
    """The least cost of a labelling problem: binary choices of labels, edges by their marginals."""
    nodes = [np.array(row, dtype=np.float64) for row in problem["nodes"]]
    first = np.concatenate([[0], np.cumsum([len(n) for n in nodes])])
    costs, rows, lower = [*nodes], [], []
    columns = int(first[-1])
    for node in range(len(nodes)):
        rows.append((np.arange(first[node], first[node + 1]), np.ones(len(nodes[node]))))
        lower.append(1.0)
    for a, b, matrix in problem["edges"]:
        m, n = len(nodes[a]), len(nodes[b])
        costs.append(np.array(problem["matrices"][str(matrix)], dtype=np.float64))
        pair = columns + np.arange(m * n).reshape(m, n)
        columns += m * n
        for i in range(m):
            rows.append((np.append(pair[i], first[a] + i), np.append(np.ones(n), -1.0)))
            lower.append(0.0)
        for j in range(n):
            rows.append((np.append(pair[:, j], first[b] + j), np.append(np.ones(m), -1.0)))
            lower.append(0.0)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, len(rows)
    scale = 1e-6  # picoseconds to microseconds
    lp.col_cost_ = np.concatenate(costs) * scale
    lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.ones(columns)
    lp.row_lower_ = lp.row_upper_ = np.array(lower)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(r[0]) for r in rows])])
    lp.a_matrix_.index_ = np.concatenate([r[0] for r in rows])
    lp.a_matrix_.value_ = np.concatenate([r[1] for r in rows])
    chosen = int(first[-1])
    lp.integrality_ = [highspy.HighsVarType.kInteger] * chosen + [
        highspy.HighsVarType.kContinuous
    ] * (columns - chosen)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 1e-9)
    solver.setOptionValue("threads", 1)
    solver.passModel(lp)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return solver.getInfo().objective_function_value / scale


@pytest.mark.parametrize("cluster", ["a100-80gb", "cpu"])
@pytest.mark.parametrize(
    "name", ["mlp", "gpt", "llama", "llama_eager", "bert", "vit", "gpt2", "retnet"]
)
def test_same_optimum_as_an_ilp_solver(tmp_path, name, cluster):
    sizes = {"batch": 8, "hidden": 256} if name == "gpt" else {"batch": 8}
    module, args, kwargs = zoo.MODELS[name](**sizes)
    archive, dump = tmp_path / "model.pt2", tmp_path / "problem.json"
    nnscaler.export(module, args, kwargs, archive)
    command = [
        "plan",
        archive,
        "--mesh",
        "tp=2",
        "--cluster",
        cluster,
        "--dump-problem",
        dump,
        "--json",
    ]
    done = subprocess.run([core_binary(), *command], stdout=subprocess.PIPE, check=True)
    plan = json.loads(done.stdout)
    assert plan["gap"] == 0
    assert optimum(json.loads(dump.read_text())) == pytest.approx(plan["cost_ms"] * 1e9, rel=1e-7)
