"""An archive as the tests look at it."""

import json
import zipfile
from pathlib import Path
from typing import Any

import torch

import nnscaler


class Exported:
    """Exports a model and reads what was written."""

    def __init__(self, path: Path, module, args=(), kwargs=None, **options) -> None:
        self.path = nnscaler.export(module, args, kwargs, path / "model.pt2", **options)
        with zipfile.ZipFile(self.path) as archive:
            self.files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
        self.extra: dict[str, Any] = json.loads(self.files["extra/nnscaler.json"])
        self.graph: dict[str, Any] = json.loads(self.files["models/model.json"])["graph_module"][
            "graph"
        ]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Nodes, those in the bodies of regions before the node that calls the body."""

        def walk(graph: dict[str, Any]):
            for node in graph["nodes"]:
                for entry in node["inputs"]:
                    if "as_graph" in entry["arg"]:
                        yield from walk(entry["arg"]["as_graph"]["graph"])
                yield node

        return list(walk(self.graph))

    def targets(self) -> list[str]:
        """Short names of the operators, in order: "linear", "nnscaler_leaf.pkg__fn"."""
        short = [n["target"].removeprefix("torch.ops.").removeprefix("aten.") for n in self.nodes]
        return [name.rpartition(".")[0] or name for name in short]

    def node(self, name: str) -> dict[str, Any]:
        (node,) = [n for n in self.nodes if n["name"] == name]
        return node

    def requires_grad(self, name: str) -> bool:
        return self.graph["tensor_values"][name]["requires_grad"]

    def run(self, module: torch.nn.Module, *args, **kwargs) -> Any:
        """What torch's own reader makes of the archive, with the module's weights."""
        loaded = torch.export.load(self.path).module()
        loaded.load_state_dict(module.state_dict(), assign=True)
        return loaded(*args, **kwargs)
