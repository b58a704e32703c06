"""How parameters and buffers rest on the ranks of a plan."""

from dataclasses import dataclass, field

import torch
from torch import nn

from nnscaler.errors import InputError
from nnscaler.runtime.mesh import Mesh


@dataclass(frozen=True)
class AttrMeta:
    """Where a rank's tensor lies in the whole one (nnScaler's name and fields).

    Attributes:
        orig_name: name in the original module.
        shape: shape of the whole tensor.
        slicers: the part that this rank holds, a slice a dim.
        sub_shape: shape of that part.
        dtype: of both.
        is_param: parameter or buffer.
        val_chunks: always 1: values are not split.
    """

    orig_name: str
    shape: tuple[int, ...]
    slicers: tuple[slice, ...]
    sub_shape: tuple[int, ...]
    dtype: torch.dtype
    is_param: bool = True
    val_chunks: int = 1

    def plain(self) -> dict:
        """As plain values, which ``torch.load(weights_only=True)`` reads."""
        return {
            "orig_name": self.orig_name,
            "shape": list(self.shape),
            "slicers": [[s.start, s.stop] for s in self.slicers],
            "sub_shape": list(self.sub_shape),
            "dtype": self.dtype,
            "is_param": self.is_param,
            "val_chunks": self.val_chunks,
        }

    @classmethod
    def from_plain(cls, plain: dict) -> "AttrMeta":
        """Inverse of `plain`."""
        return cls(
            plain["orig_name"],
            tuple(plain["shape"]),
            tuple(slice(*ends) for ends in plain["slicers"]),
            tuple(plain["sub_shape"]),
            plain["dtype"],
            plain["is_param"],
            plain["val_chunks"],
        )


@dataclass(frozen=True)
class Layout:
    """How one tensor rests on a mesh.

    Attributes:
        mesh: the mesh.
        shape: shape of the whole tensor.
        local_shape: shape of each rank's part.
        shard: dim -> axes that split it, outermost first.
        reduce: axes along which the gradient is a partial sum, to be added up once a step.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    shard: dict[int, tuple[str, ...]] = field(default_factory=dict)
    reduce: tuple[str, ...] = ()

    @property
    def shard_axes(self) -> tuple[str, ...]:
        """Axes that split the tensor, in the mesh's order."""
        used = {axis for axes in self.shard.values() for axis in axes}
        return tuple(axis for axis in self.mesh.axes if axis in used)

    @property
    def replica_axes(self) -> tuple[str, ...]:
        """Axes along which every rank holds the same, in the mesh's order."""
        used = self.shard_axes
        return tuple(axis for axis in self.mesh.axes if axis not in used)

    def slices(self, coordinates: dict[str, int]) -> tuple[slice, ...]:
        """The part of the whole tensor at some coordinates of the mesh."""
        slices = []
        for dim, extent in enumerate(self.local_shape):
            place = 0
            for axis in self.shard.get(dim, ()):
                place = place * self.mesh.axes[axis] + coordinates[axis]
            slices.append(slice(place * extent, (place + 1) * extent))
        return tuple(slices)

    def describe(self) -> list:
        """Plain values that tell two layouts apart."""
        return [list(self.shape), sorted((d, list(a)) for d, a in self.shard.items())]


def _layout(mesh: Mesh, local_shape, shard, reduce) -> Layout:
    local_shape = tuple(int(extent) for extent in local_shape)
    shape, split = list(local_shape), {}
    for dim, axes in (shard or {}).items():
        axes = (axes,) if isinstance(axes, str) else tuple(axes)
        if not 0 <= dim < len(shape):
            raise InputError(f"layout: dim {dim} is split and the shape is {local_shape}")
        shape[dim] *= mesh.axis_size(axes)
        split[dim] = axes
    used = [axis for axes in split.values() for axis in axes]
    if len(used) != len(set(used)):
        raise InputError(f"layout: an axis splits two dims of {tuple(shape)}: {shard}")
    reduce = (reduce,) if isinstance(reduce, str) else tuple(reduce)
    mesh.axis_size(reduce)
    if set(reduce) & set(used):
        raise InputError(f"layout: {sorted(set(reduce) & set(used))} both split and reduce")
    return Layout(mesh, tuple(shape), local_shape, split, reduce)


def parameter(
    mesh: Mesh,
    local_shape: tuple[int, ...],
    *,
    shard: dict | None = None,
    reduce: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float32,
    requires_grad: bool = True,
) -> nn.Parameter:
    """A parameter of a generated module, without values yet.

    Args:
        mesh: the plan's mesh.
        local_shape: shape of this rank's part.
        shard: dim -> axis or axes that split it; the first is outermost.
        reduce: axes along which the gradient is a partial sum, added up once a step.
        dtype: its dtype.
        requires_grad: whether it is trained.
    """
    layout = _layout(mesh, local_shape, shard, reduce)
    tensor = nn.Parameter(torch.empty(layout.local_shape, dtype=dtype), requires_grad=requires_grad)
    tensor.nnscaler_layout = layout
    return tensor


def buffer(
    mesh: Mesh,
    local_shape: tuple[int, ...],
    *,
    shard: dict | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """A buffer of a generated module, without values yet; see `parameter`."""
    layout = _layout(mesh, local_shape, shard, ())
    tensor = torch.empty(layout.local_shape, dtype=dtype)
    tensor.nnscaler_layout = layout
    return tensor
