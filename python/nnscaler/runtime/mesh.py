"""The device mesh of a plan: coordinates of this rank and process groups."""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupMember

from nnscaler.errors import InputError

_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
_groups_of: object = None  # The default group that `_groups` belong to.


def world_size() -> int:
    """Ranks of the job; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def world_rank() -> int:
    """Rank of this process in the job; 0 without torch.distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
    """The process group of some ranks, made on first use and kept; this rank is one of them.

    Only the members take part in making it, so all of them must ask for their common groups in
    the same order: rank programs and ``ParallelModule`` do.

    Args:
        ranks: ascending ranks of the job.

    Returns:
        None for this rank alone, the default group for all ranks.
    """
    global _groups_of
    if len(ranks) == 1:
        return None
    if _groups_of is not GroupMember.WORLD:  # The job was ended and another one begun.
        _groups.clear()
        _groups_of = GroupMember.WORLD
    if len(ranks) == world_size():
        return GroupMember.WORLD
    if ranks not in _groups:
        _groups[ranks] = new_group(ranks)
    return _groups[ranks]


def new_group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """A process group of its own, shared with nobody: for collectives out of program order."""
    return dist.new_group(list(ranks), use_local_synchronization=True)


class Mesh:
    """The devices of a plan as a grid with named axes.

    Ranks of the job are cut into scale units of ``size`` ranks each, copies of the plan; within a
    unit the last axis varies fastest. Process groups are made on first use.

    Args:
        axes: name and size of each axis, outermost first.

    Example:
        >>> mesh = Mesh(dp=2, tp=4)  # rank 5 has dp=1, tp=1
    """

    def __init__(self, **axes: int):
        for name, size in axes.items():
            if not isinstance(size, int) or size < 1:
                raise InputError(f"mesh: axis {name} has size {size!r}; write a whole number")
        self.axes: dict[str, int] = dict(axes)
        self.size = 1
        for size in axes.values():
            self.size *= size
        self._world: object = self  # The default group that what follows is for; at first none.
        self._rank, self._world_size = 0, 1
        self._coordinates: dict[str, int] = {}
        self._group_cache: dict[object, tuple] = {}
        self.compiled: dict[object, object] = {}  # redistribute keeps its compiled steps here

    def __repr__(self) -> str:
        return "Mesh(" + ", ".join(f"{name}={size}" for name, size in self.axes.items()) + ")"

    def __deepcopy__(self, _memo: dict) -> "Mesh":
        return self

    def describe(self) -> str:
        """The axes as in a plan: ``dp=2,tp=4``."""
        return ",".join(f"{name}={size}" for name, size in self.axes.items())

    # Where this rank is.

    def locate(self) -> None:
        """Finds this rank's place, once a job; what is cached is forgotten when the job changes.

        Raises:
            InputError: the job's ranks are not a multiple of the mesh's.
        """
        world = GroupMember.WORLD
        if self._world is world:
            return
        self._rank, self._world_size = world_rank(), world_size()
        if self._world_size % self.size:
            raise InputError(
                f"mesh {self.describe()} needs a multiple of {self.size} ranks and the job has "
                f"{self._world_size}; start it with torchrun --nproc_per_node={self.size}"
            )
        self._coordinates = self.coordinates_of(self._rank)
        self._group_cache.clear()
        self.compiled.clear()
        self._world = world

    @property
    def rank(self) -> int:
        """This rank within its scale unit."""
        self.locate()
        return self._rank % self.size

    @property
    def unit(self) -> int:
        """The scale unit of this rank."""
        self.locate()
        return self._rank // self.size

    @property
    def num_units(self) -> int:
        """Number of scale units in the job."""
        self.locate()
        return self._world_size // self.size

    def coordinates_of(self, rank: int) -> dict[str, int]:
        """Coordinates of any rank of the job."""
        rank %= self.size
        coordinates = {}
        for name, size in reversed(self.axes.items()):
            coordinates[name] = rank % size
            rank //= size
        return dict(reversed(coordinates.items()))

    def axis_size(self, axes: str | tuple[str, ...]) -> int:
        """Number of ranks along one axis, or along several together."""
        size = 1
        for axis in (axes,) if isinstance(axes, str) else axes:
            if axis not in self.axes:
                raise InputError(f"mesh {self.describe()} has no axis {axis!r}")
            size *= self.axes[axis]
        return size

    def coordinate(self, axes: str | tuple[str, ...]) -> int:
        """This rank's place along an axis; along several, the first is outermost."""
        self.locate()
        place = 0
        for axis in (axes,) if isinstance(axes, str) else axes:
            place = place * self.axis_size(axis) + self._coordinates[axis]
        return place

    # Groups.

    def ranks(self, axes: str | tuple[str, ...] = (), units: bool = False) -> tuple[int, ...]:
        """Ranks of the job that differ from this one only along ``axes``.

        Args:
            axes: an axis or several.
            units: also along the scale units.
        """
        self.locate()
        axes = (axes,) if isinstance(axes, str) else axes
        self.axis_size(axes)
        found, stride = [0], 1
        for name, size in reversed(self.axes.items()):
            if name in axes:
                found = [r + c * stride for c in range(size) for r in found]
            else:
                found = [r + self._coordinates[name] * stride for r in found]
            stride *= size
        unit_list = range(self.num_units) if units else (self.unit,)
        return tuple(sorted(r + u * self.size for u in unit_list for r in found))

    def group(
        self, axes: str | tuple[str, ...] = (), units: bool = False
    ) -> dist.ProcessGroup | None:
        """Process group along ``axes``; None where that is this rank alone.

        Ranks in it are ordered as the mesh's, whatever the order of ``axes``.
        """
        self.locate()
        key = (axes, units)
        if key not in self._group_cache:
            self._group_cache[key] = (group_of(self.ranks(axes, units)),)
        return self._group_cache[key][0]

    def rng(self, *axes: str):
        """Random numbers inside are drawn independently along ``axes`` and alike along the others.

        Scale units draw differently. See `nnscaler.runtime.random`.
        """
        from nnscaler.runtime.random import drawing

        return drawing(self, axes)


def current_device() -> torch.device:
    """The device of this rank: its CUDA device where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def wire_device() -> torch.device:
    """Where a tensor of parallel modules is: this rank's CUDA device in an NCCL job, else the CPU."""
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "nccl":
        return current_device()
    return torch.device("cpu")
