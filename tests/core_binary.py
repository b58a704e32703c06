"""Finds the native command line, for tests that run it as a user does."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def core_binary() -> Path:
    """`nnscaler-core`: $NNSCALER_CORE, or the newest of what `make build` and `make setup` leave."""
    if given := os.environ.get("NNSCALER_CORE"):
        return Path(given).resolve()
    places = [ROOT / "build/release/nnscaler-core", ROOT / ".venv/bin/nnscaler-core"]
    built = [path for path in places if path.exists()]
    if not built:
        pytest.fail(f"no nnscaler-core in {places[0].parent} or {places[1].parent}; run make build")
    return max(built, key=lambda path: path.stat().st_mtime)
