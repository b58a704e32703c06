"""Plans to try on a model: what the user's rules demand, what a policy gives, and what a seed draws."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import nnscaler
from nnscaler import _core, policies
from pool import run_on


def launch(count, job, *arguments):
    run_on(count, job, *arguments, timeout=180)


class Archives:
    """Models with their archives, exported once."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.made = {}

    def get(self, key, make):
        """(module, args, kwargs, archive) of what `make` returns."""
        if key not in self.made:
            module, args, kwargs = make()
            archive = self.directory / f"{len(self.made)}.pt2"
            nnscaler.export(module, args, kwargs, archive)
            self.made[key] = (module, args, kwargs, str(archive))
        return self.made[key]


def forced(archive, policy, devices, **pas_config):
    """The partitions of a built-in policy."""
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
        if op["pinned"] or op["constant"]:
            continue
        # One name on every axis, or one of them replicated: two names may meet in one dim.
        name = draw.choice([*names, "replicate"])
        result[op["op"]] = [draw.choice([name, "replicate"]) for _ in sizes]
    return result


def rules(path, *texts):
    """A constraints file of rules such as "linear @ fc1: 1,0 0,0": a split that the file demands.

    A name without a dot is in torch.nn.functional; " @ " and what follows may be left out.
    """
    lines = []
    for text in texts:
        head, _, dims = text.partition(": ")
        name, _, module = head.partition(" @ ")
        name = name if "." in name else f"torch.nn.functional.{name}"
        parent = f"parent_module: {module}, " if module else ""
        pairs = ", ".join(f"'{pair}'" for pair in dims.split())
        lines.append(
            f"- {{name: {name}, {parent}allowed_partition_dims: [{pairs}], replica_allowed: false}}\n"
        )
    Path(path).write_text("".join(lines))
    return str(path)
