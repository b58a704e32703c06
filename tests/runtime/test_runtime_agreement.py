"""What one rank finds, all ranks hear."""

import pytest

from nnscaler.errors import InputError
from nnscaler.runtime.agreement import fingerprint, on_rank0, raise_together, verify_agreement
from nnscaler.runtime.mesh import world_rank
from pool import RankError, run_on


def heard(call, kind):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def digests_job(digests, expected):
    verify_agreement("same")
    mine = digests[world_rank()]
    return heard(lambda: verify_agreement(mine, "plan", expected), InputError)


def test_digests():
    hint = "; give all of them the same files, on a shared file system or with broadcast_strategy='all'"
    got = run_on(4, digests_job, ["aa", "bb", "aa", "aa"], None)
    assert got == ["the ranks differ in plan: aa on ranks 0,2-3; bb on rank 1" + hint] * 4
    got = run_on(4, digests_job, ["aa"] * 4, "cc")
    assert got == ["the ranks differ in plan: aa on ranks 0-3; cc was written" + hint] * 4
    with pytest.raises(InputError, match="aa on rank 0; cc was written"):
        verify_agreement("aa", "plan", "cc")
    verify_agreement("aa")


def rank0_job():
    def fail(error):
        raise error

    assert on_rank0(world_rank) == 0
    return (
        heard(lambda: on_rank0(lambda: fail(InputError("m.py:3: no")), "planning"), InputError),
        heard(lambda: on_rank0(lambda: fail(KeyError("x"))), Exception),
    )


def test_errors_of_rank_0():
    first, second = run_on(2, rank0_job)
    assert first == ("m.py:3: no", "'x'")
    assert second == ("rank 0: planning: m.py:3: no", "rank 0: KeyError: 'x'")


def together_job():
    raise_together(None)
    mine = InputError("too few") if world_rank() == 1 else None
    return (
        heard(lambda: raise_together(mine, "loading"), InputError),
        heard(lambda: raise_together(OSError("gone") if mine else None), Exception),
    )


def test_errors_of_any_rank():
    first, second = run_on(2, together_job)
    assert first == ("rank 1: loading: too few", "rank 1: OSError: gone")
    assert second == ("too few", "gone")


def test_fingerprints(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    b.write_text("1")
    assert fingerprint(a) == fingerprint(b) != fingerprint(a, b)
    b.write_text("2")
    assert fingerprint(a) != fingerprint(b)


# The pool itself.


def dying_job(rank):
    import os

    if world_rank() == rank:
        os._exit(7)
    import torch.distributed as dist

    dist.barrier()


def hanging_job():
    import time

    if world_rank() == 1:
        time.sleep(60)


def raising_job():
    if world_rank() == 1:
        raise KeyError("wrong")


def test_pool_names_the_rank():
    with pytest.raises(RankError, match="dying_job on 2 ranks\nrank 1: died with exit code 7"):
        run_on(2, dying_job, 1)
    with pytest.raises(RankError, match=r"(?s)rank 1: no answer within 2 s:.*hanging_job"):
        run_on(2, hanging_job, timeout=2)
    with pytest.raises(RankError, match=r"(?s)raising_job on 2 ranks.*rank 1: .*KeyError: 'wrong'"):
        run_on(2, raising_job)
    assert run_on(2, world_rank) == [0, 1]
