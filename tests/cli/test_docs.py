"""What the documents say of the program is so."""

import json
import re
import subprocess
import sys

import pytest

from core_binary import ROOT, core_binary

ARCHIVES = ROOT / "tests" / "graph" / "data"
RULES = """\
- name: torch.nn.functional.linear
  parent_module: {}
  allowed_partition_dims: ["{}"]
  replica_allowed: false
"""


def test_references_are_current():
    """docs/cli.md and docs/operators.md are what the program prints."""
    command = [sys.executable, ROOT / "tools" / "cli_reference.py", core_binary(), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def keys_of(document):
    if isinstance(document, dict):
        return set(document).union(*map(keys_of, document.values()))
    if isinstance(document, list):
        return set().union(*map(keys_of, document))
    return set()


def make_plan(folder, archive, rules, *options):
    (folder / "rules.yaml").write_text(rules)
    command = [core_binary(), "plan", ARCHIVES / archive, "-o", folder / "plan.json", *options]
    subprocess.run([*command, "--constraints", folder / "rules.yaml"], check=True)
    return json.loads((folder / "plan.json").read_text())


def test_plan_schema_has_every_key(tmp_path):
    """Each key of a plan with rules, redistributions, reductions, recomputation is in docs/plan.md."""
    rules = RULES.format("fc1", "1,0") + RULES.format("fc2", "1,1")
    plans = [
        make_plan(tmp_path, "mlp.pt2", rules, "--mesh=dp=2,tp=2", "--units=2", "--recompute=fc1"),
        make_plan(tmp_path, "mlp.pt2", RULES.format("fc1", "0,0"), "--mesh=dp=2"),
        make_plan(tmp_path, "features.pt2", "[]", "--mesh=tp=2"),
    ]
    keys = set().union(*map(keys_of, plans))
    assert {"rule", "recompute", "dim", "in_place", "sent_bytes"} <= keys
    written = set(re.findall(r"`([\w-]+)`", (ROOT / "docs" / "plan.md").read_text()))
    assert keys <= written, f"docs/plan.md lacks {sorted(keys - written)}"


@pytest.mark.parametrize("document", ["cluster.md", "adding.md"])
def test_clusters_in_documents_are_read(document, tmp_path):
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / document).read_text(), re.S)
    assert examples
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.yaml"
        file.write_text(re.sub(r"^aliases: .*\n", "", example, flags=re.M))  # of the box only
        command = [core_binary(), "plan", ARCHIVES / "mlp.pt2", "--mesh=tp=2", "--cluster", file]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, f"{example}\n{ran.stderr}"
