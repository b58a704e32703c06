"""Coordinates, groups, and what does not fit."""

import pytest
import torch
import torch.distributed as dist

import nnscaler.runtime as rt
from nnscaler.errors import InputError
from nnscaler.runtime.layout import AttrMeta
from pool import run_on


def place_job():
    mesh, half = rt.Mesh(dp=2, tp=2), rt.Mesh(tp=2)
    sums = []
    for axes, units in (("dp", False), ("tp", False), (("dp", "tp"), False), ("tp", True)):
        x = torch.tensor([10 ** dist.get_rank()])
        group = mesh.group(axes, units)
        dist.all_reduce(x, group=group)
        sums.append(x.item())
    x = torch.tensor([10 ** dist.get_rank()])
    dist.all_reduce(x, group=half.group((), units=True))
    sums.append(x.item())
    return (
        mesh.coordinate("dp"),
        mesh.coordinate("tp"),
        mesh.coordinate(("tp", "dp")),
        (half.unit, half.rank, half.num_units),
        mesh.ranks("dp"),
        half.ranks("tp", units=True),
        sums,
        mesh.group(("dp", "tp")) is dist.group.WORLD and half.group(()) is None,
    )


def test_places():
    got = run_on(4, place_job)
    assert got[0] == (0, 0, 0, (0, 0, 2), (0, 2), (0, 1, 2, 3), [101, 11, 1111, 11, 101], True)
    assert got[1] == (0, 1, 2, (0, 1, 2), (1, 3), (0, 1, 2, 3), [1010, 11, 1111, 11, 1010], True)
    assert got[2] == (1, 0, 1, (1, 0, 2), (0, 2), (0, 1, 2, 3), [101, 1100, 1111, 1100, 101], True)
    assert got[3] == (
        1,
        1,
        3,
        (1, 1, 2),
        (1, 3),
        (0, 1, 2, 3),
        [1010, 1100, 1111, 1100, 1010],
        True,
    )


def too_small_job():
    with pytest.raises(InputError) as caught:
        rt.Mesh(tp=3).coordinate("tp")
    return str(caught.value)


def test_mesh_that_the_job_cannot_hold():
    assert run_on(2, too_small_job)[0] == (
        "mesh tp=3 needs a multiple of 3 ranks and the job has 2; "
        "start it with torchrun --nproc_per_node=3"
    )


def test_mesh_without_torch_distributed():
    mesh = rt.Mesh(dp=1, tp=1)
    assert (mesh.coordinate("tp"), mesh.num_units, mesh.group("tp")) == (0, 1, None)
    with pytest.raises(InputError, match="mesh tp=2 needs a multiple of 2 ranks and the job has 1"):
        rt.Mesh(tp=2).coordinate("tp")


def test_wrong_axes():
    with pytest.raises(InputError, match="axis tp has size 0"):
        rt.Mesh(tp=0)
    with pytest.raises(InputError, match="mesh tp=2 has no axis 'dp'"):
        rt.Mesh(tp=2).axis_size("dp")


def test_layouts():
    mesh = rt.Mesh(a=2, b=3)
    p = rt.parameter(mesh, (4, 5), shard={0: ("a", "b"), 1: ()}, dtype=torch.bfloat16)
    layout = p.nnscaler_layout
    assert (layout.shape, layout.local_shape, p.dtype) == ((24, 5), (4, 5), torch.bfloat16)
    assert layout.slices({"a": 1, "b": 2}) == (slice(20, 24), slice(0, 5))
    assert layout.slices({"a": 1, "b": 0}) == (slice(12, 16), slice(0, 5))
    assert (layout.shard_axes, layout.replica_axes) == (("a", "b"), ())
    with pytest.raises(InputError, match=r"layout: dim 2 is split and the shape is \(4, 5\)"):
        rt.parameter(mesh, (4, 5), shard={2: "a"})
    with pytest.raises(InputError, match="an axis splits two dims"):
        rt.parameter(mesh, (4, 5), shard={0: "a", 1: "a"})
    with pytest.raises(InputError, match=r"\['a'\] both split and reduce"):
        rt.parameter(mesh, (4, 5), shard={0: "a"}, reduce=("a",))
    meta = AttrMeta("w", (8, 4), (slice(4, 8), slice(0, 4)), (4, 4), torch.float32)
    assert AttrMeta.from_plain(meta.plain()) == meta
