"""Flags of accumulation, printing, and the start of a job."""

import contextlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import nnscaler.initialize
from nnscaler.flags import RuntimeFlag, sync_grad_when
from nnscaler.utils import accum_mode, print_each_rank
from pool import run_on


def flags():
    return (RuntimeFlag.skip_zero_grad, RuntimeFlag.skip_reducer)


def test_accumulation_flags():
    seen = []
    for i in accum_mode.steps(3):
        seen.append((i, *flags()))
    assert seen == [(0, False, True), (1, True, True), (2, True, False)]
    assert flags() == (False, False)
    with accum_mode(begin=False):
        assert flags() == (True, False)
        with sync_grad_when(False):
            assert flags() == (True, True)
        assert flags() == (True, False)
    assert [flags() for _ in accum_mode.steps(1)] == [(False, False)]


def print_job():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_each_rank("hello")
        print_each_rank("one", rank_only=1)
    return out.getvalue()


def test_printing(caplog):
    assert run_on(2, print_job) == ["rank [0]: hello\n", "rank [1]: hello\nrank [1]: one\n"]
    with caplog.at_level(logging.INFO):
        print_each_rank("alone", logger=logging.getLogger("x"))
    assert caplog.messages == ["rank [0]: alone"]


def test_init_without_torchrun(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    nnscaler.initialize.init()
    import torch.distributed as dist

    assert not dist.is_initialized()
    nnscaler.initialize.uninit()


def test_init_with_torchrun(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "from nnscaler.initialize import init, uninit\n"
        "import torch.distributed as dist\n"
        "init(); init()\n"
        "print('rank', dist.get_rank(), 'of', dist.get_world_size(), flush=True)\n"
        "uninit(); assert not dist.is_initialized(); uninit()\n"
    )
    root = Path(nnscaler.initialize.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", str(script)],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1" in done.stdout
