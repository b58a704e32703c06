"""The timer: fields, gating, and that its numbers tell of a rank that comes late."""

import logging
import threading
import time

import pytest
import torch
import torch.distributed as dist
from rank_programs import Mix, load, make

import nnscaler.runtime as rt
from nnscaler.optimizer import build_optimizer
from nnscaler.profiler import CudaTimer, timer
from nnscaler.runtime.mesh import world_rank
from pool import run_on


@pytest.fixture(autouse=True)
def fresh():
    yield
    CudaTimer(enable=True, predefined=False).clear()


def test_fields():
    t = CudaTimer(enable=True)
    assert t is CudaTimer() is CudaTimer.instance is t.instance
    t.clear()
    t.start("outer")
    t.start("inner")
    time.sleep(0.02)
    inner = t.stop("inner")
    t.start("outer")  # Nested under its own name.
    time.sleep(0.01)
    assert 0.01 <= t.stop("outer") < 0.5
    with pytest.raises(RuntimeError, match="'outer' was started and not stopped"):
        t.duration(1, "outer")
    outer = t.stop("outer")
    assert 0.02 <= inner < outer
    assert t.duration(2, "inner") == pytest.approx(inner * 1e3 / 2)
    assert set(t.field_data) == {"outer", "inner"}
    with pytest.raises(RuntimeError, match="Missing start on the field 'inner'"):
        t.stop("inner")
    with pytest.raises(RuntimeError, match="Missing start on the field 'default'"):
        t.stop()
    t.clear()
    with pytest.raises(RuntimeError, match="Missing start on the field 'outer'"):
        t.stop("outer")
    assert t.field_data == {} and (t.enabled, t.predefined) == (True, False)


def test_switches(caplog):
    t = CudaTimer(enable=False)
    t.clear()
    t.start("a")
    assert t.stop("a") is None and t.field_data == {}
    CudaTimer(enable=True)
    t.start("b", predefined=True)
    assert t.stop("b", predefined=True) is None and t.field_data == {}
    CudaTimer(predefined=True)
    assert timer.predefined_on
    t.start("b", predefined=True)
    assert t.stop("b", predefined=True) >= 0 and set(t.field_data) == {"b", "comm", "exposed"}
    CudaTimer(enable=False)
    assert not timer.predefined_on
    with caplog.at_level(logging.WARNING):
        assert CudaTimer(enable=True).duration(1, "none") == 0.0
    assert "the timer has no field 'none'; it has ['b', 'comm', 'exposed']" in caplog.text


def test_print_without_torch_distributed(capsys, monkeypatch):
    t = CudaTimer(enable=True, predefined=True)
    t.clear()
    t.start("e2e")
    t.stop("e2e")
    t.print_all(times=1, rank_only=0)
    line = capsys.readouterr().out
    assert line.startswith("rank [0]: comm : 0.00 ms | e2e : 0.0") and "| exposed : 0.00 ms" in line
    t.print_all(times=1, rank_only=1)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("SINGLE_DEV_MODE", "1")
    t.print_all(times=1)
    assert capsys.readouterr().out.startswith("comm : 0.00 ms")
    t.warmup(0.01)
    assert capsys.readouterr().out == "> warming up for 0.01 seconds\n"


def test_union_of_spans():
    busy = timer._Busy()
    for start, end in ((0, 2), (1, 3), (1.5, 2), (5, 6)):
        busy.add(start, end)
    assert busy.total == 4


def late_job():
    """Rank 1 comes 0.3 s late to an all-reduce and is early at the next."""
    mesh = rt.Mesh(tp=2)
    x = torch.ones(1000)
    rt.redistribute(x, mesh, [rt.all_reduce("tp")])
    t = CudaTimer(enable=True, predefined=True)
    t.clear()
    dist.barrier()
    t.start("e2e")
    if world_rank() == 1:
        time.sleep(0.3)
    rt.redistribute(x, mesh, [rt.all_reduce("tp")])
    rt.redistribute(x, mesh, [rt.all_gather("tp", 0), rt.slice("tp", 0)])
    rt.redistribute(x, mesh, [rt.reduce_scatter("tp", 0), rt.all_gather("tp", 0)])
    t.stop("e2e")
    return t.summary()


def test_a_late_rank():
    first, second = run_on(2, late_job)
    for summary in (first, second):
        ms = summary["fields"]
        assert list(ms) == sorted(
            ["all_gather(tp)", "all_reduce(tp)", "comm", "e2e", "exposed", "reduce_scatter(tp)"]
        )
        assert ms["comm"] == pytest.approx(ms["exposed"]) and ms["comm"] <= ms["e2e"]
        kinds = summary["collectives"]
        assert sum(k["ms"] for k in kinds.values()) == pytest.approx(ms["comm"])
        assert {n: (k["calls"], k["bytes"], k["sent_bytes"]) for n, k in kinds.items()} == {
            "all_reduce(tp)": (1, 4000, 4000),
            "all_gather(tp)": (2, 8000 + 4000, 4000 + 2000),
            "reduce_scatter(tp)": (1, 4000, 2000),
        }
        assert not any(k["asynchronous"] for k in kinds.values())
    waited = [s["collectives"]["all_reduce(tp)"]["ms"] for s in (first, second)]
    assert waited[0] > 290 and waited[1] < waited[0] - 150
    assert (
        second["fields"]["e2e"] > 290 and second["fields"]["comm"] < second["fields"]["e2e"] - 290
    )


def overlap_job(folder, config):
    """Rank 1 starts its backward 0.4 s late; rank 0 works meanwhile, so it waits less."""
    module = load("mix", make(Mix), folder, 1, 1, **config)()
    optimizer = build_optimizer(module, torch.optim.SGD, lr=0.1)
    x = torch.ones(8, 8, dtype=torch.float64)
    t = CudaTimer(enable=True, predefined=True)
    for _ in range(2):
        optimizer.zero_grad()
        loss = module(x)
        dist.barrier()
        t.clear()
        t.start("e2e")
        if world_rank() == 1:
            time.sleep(0.4)
        loss.backward()
        if world_rank() == 0:
            time.sleep(0.2)  # Stands for the rest of backward.
        optimizer.step()
        t.stop("e2e")
    return t.summary()


ASYNC = {"use_async_reducer": True, "reducer_bucket_cap_mb": 1e-3}


def test_overlap(tmp_path):
    sync, _ = run_on(2, overlap_job, tmp_path / "a", {})
    late, _ = run_on(2, overlap_job, tmp_path / "b", ASYNC)
    for summary, asynchronous in ((sync, False), (late, True)):
        field = summary["collectives"]["reduce(units)"]
        assert field["bytes"] == 8 * (8 * 32 * 2 + 32 + 8 * 3 + 1 + 32)
        assert field["asynchronous"] == asynchronous
        assert field["exposed_ms"] == pytest.approx(summary["fields"]["exposed"])
        assert field["ms"] == pytest.approx(summary["fields"]["comm"])
        assert field["exposed_ms"] <= summary["fields"]["e2e"]
        assert field["ms"] <= field["total_ms"] + 1e-6
        if asynchronous:  # From the first bucket's start to the last one's end.
            assert field["calls"] > 1
            assert field["ms"] > 380 and field["exposed_ms"] < field["ms"] - 150
        else:
            assert field["calls"] == 1
            assert field["ms"] > 100 and field["exposed_ms"] > 0.9 * field["ms"]


def printed_job(folder):
    """The user's loop, verbatim."""
    import contextlib
    import io

    from nnscaler.profiler.timer import CudaTimer

    model = load("mix", make(Mix), folder, 1, 2)()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for batches in [torch.ones(8, 8, dtype=torch.float64)] * 2:
            CudaTimer().clear()
            CudaTimer(enable=True, predefined=True).start("e2e")
            loss = model(batches)
            loss.backward()
            CudaTimer().stop("e2e")
            CudaTimer().print_all(times=1, rank_only=0)
    return out.getvalue()


def test_what_is_printed(tmp_path):
    first, second = run_on(2, printed_job, tmp_path)
    assert second == ""
    lines = first.splitlines()
    assert len(lines) == 4 and lines[0].startswith("rank [0]: all_reduce(tp) : ")
    for field in (" comm : ", " e2e : ", " exposed : "):
        assert f"|{field}" in lines[0]
    assert lines[1].startswith("  all_reduce(tp): ") and lines[1].endswith(" 2 calls, 0.000977 MiB")


def long_job():
    """Many collectives are added up as they come, also while one is under way."""
    from nnscaler.runtime import comm

    mesh = rt.Mesh(tp=2)
    t = CudaTimer(enable=True, predefined=True)
    t.clear()
    flat, before = torch.ones(4), timer._COMPACT_AT
    timer._COMPACT_AT = 16
    try:
        own = mesh.group("tp")
        begun = comm.start_all_reduce(flat, own, "reduce(tp)", flat.nbytes)
        for _ in range(50):
            rt.redistribute(flat[:0].new_ones(2), mesh, [rt.all_reduce("tp")])
        begun.wait()
        kept = len(t._spans)
        summary = t.summary(times=2)
    finally:
        timer._COMPACT_AT = before
    assert kept < 16 and summary["collectives"]["all_reduce(tp)"]["calls"] == 25
    assert summary["fields"]["comm"] >= summary["fields"]["all_reduce(tp)"] * 0.99
    assert threading.active_count() < 50
    return flat.tolist()


def test_many_collectives():
    assert run_on(2, long_job) == [[2.0] * 4] * 2


def test_disabled_costs_nothing():
    """What a collective pays without the timer is one look at a flag."""
    assert timer.predefined_on is False
    from nnscaler.runtime import comm

    calls = []
    comm._block("f", 1, 1, None, torch.zeros(1), lambda: calls.append(1))
    assert calls == [1] and timer._timer._comm == {}
