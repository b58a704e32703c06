"""`nnscaler export`: writes the archive of a model."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from nnscaler.errors import InputError


def load_maker(name: str) -> Any:
    """The function `pkg.mod:make` names.

    Raises:
        InputError: there is no such module or function.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InputError(f"{name}: write pkg.mod:make, a module and a function in it")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{name}: {module} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise InputError(f"{name}: {module} has no {attribute}")
        target = getattr(target, part)
    if not callable(target):
        raise InputError(f"{name}: {attribute} is no function")
    return target


def make_model(name: str) -> tuple[Any, tuple, dict]:
    """Calls `pkg.mod:make`; it returns `(module, args, kwargs)`.

    Raises:
        InputError: it returns something else.
    """
    import torch

    made = load_maker(name)()
    if not (
        isinstance(made, tuple)
        and len(made) == 3
        and isinstance(made[0], torch.nn.Module)
        and isinstance(made[1], (tuple, list))
        and isinstance(made[2], dict)
    ):
        raise InputError(
            f"{name}: must return (module, args, kwargs): a torch.nn.Module, a tuple and a dict of samples"
        )
    return made[0], tuple(made[1]), made[2]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="nnscaler export",
        description="Writes the archive of a model, which the other verbs read.",
        epilog="Example:\n  nnscaler export mypkg.model:make -o model.pt2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "maker", help="pkg.mod:make, a function that returns (module, args, kwargs)"
    )
    parser.add_argument("-o", "--output", required=True, help="where to write the archive")
    parser.add_argument(
        "--meta", action="store_true", help="make the model on the meta device, without memory"
    )
    parser.add_argument("--eval", action="store_true", help="export the model in evaluation mode")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    given = parser.parse_args(arguments)

    import torch

    import nnscaler

    if not Path(given.output).resolve().parent.is_dir():
        raise InputError(f"{given.output}: its directory does not exist; make it first")
    if Path(given.output).is_dir():
        raise InputError(f"{given.output}: is a directory; name a file, such as model.pt2")
    start = time.perf_counter()
    if given.meta:
        with torch.device("meta"):
            module, args, kwargs = make_model(given.maker)
    else:
        module, args, kwargs = make_model(given.maker)
    module.train(not given.eval)
    nnscaler.export(module, args, kwargs, given.output, training=not given.eval)
    seconds = time.perf_counter() - start
    size = Path(given.output).stat().st_size
    if given.json:
        facts = {"archive": given.output, "bytes": size, "seconds": seconds}
        print(json.dumps(facts))
    else:
        print(f"wrote {given.output}: {size / 1024:.0f} KiB in {seconds:.1f} s")
    return 0
