"""A folder of the core includes only folders above it, and the header it needs by its full path."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ["base", "graph", "ops", "cost", "simulate", "plan", "lower", "emit", "cli"]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
FILES = sorted([*ROOT.glob("core/**/*.h"), *ROOT.glob("core/**/*.cpp")])


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_includes_only_folders_above(file):
    own = file.relative_to(ROOT / "core").parts[0]
    for include in INCLUDE.findall(file.read_text()):
        assert include.startswith("core/"), f"{include}: give the full path"
        folder = include.split("/")[1]
        if folder == "version.h":
            continue
        assert ORDER.index(folder) <= ORDER.index(own), f"{own} includes {include}"


def test_only_sources_include_parsers():
    for file in ROOT.glob("core/**/*.h"):
        for library in ("nlohmann", "yaml-cpp", "simdjson", "zip.h"):
            found = re.findall(rf"^#include <{library}.*$", file.read_text(), re.M)
            assert not found, f"{file.relative_to(ROOT)}: {found[0]}"
