"""Random numbers of a plan: alike on the ranks that hold one value, independent on those that split it.

PyTorch's functions draw from the default generator. Around a random operator the generated code
swaps in a state of the runtime's own, one for each set of mesh axes along which ranks draw
independently, and takes it out again. Where a job is one rank alone the default generator is left
as it is, so that numbers are those of the original model.

The states start from one seed: ``torch.initial_seed()`` of rank 0 when the first parallel module
is made, or what `manual_seed` was given. Values drawn alike on the whole plan by the first scale
unit are those of the default generator with that seed.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist

from nnscaler.runtime.mesh import Mesh, wire_device, world_size

_base: int | None = None
_states: dict[tuple, tuple[torch.Tensor, torch.Tensor | None]] = {}  # key -> CPU, CUDA


def manual_seed(seed: int) -> None:
    """Starts all random states of the runtime anew; every rank must give the same seed."""
    global _base
    _base = int(seed)
    _states.clear()


def agree_on_seed() -> None:
    """Takes rank 0's seed once for the whole job; all ranks must call this."""
    if _base is not None:
        return
    seed = torch.tensor([torch.initial_seed() & (2**63 - 1)], dtype=torch.int64)
    if world_size() > 1:
        seed = seed.to(wire_device())
        dist.broadcast(seed, 0)
    manual_seed(int(seed.item()))


def drawing(mesh: Mesh, axes: tuple[str, ...]):
    """A context in which random numbers differ along ``axes``; see `Mesh.rng`."""
    if world_size() == 1:
        return nullcontext()
    unit, place = mesh.unit, tuple((a, mesh.axes[a], mesh.coordinate(a)) for a in axes)
    return _swapped((unit, place))


def _seed_of(key: tuple) -> int:
    if _base is None:
        raise RuntimeError("Mesh.rng: there is no seed before a parallel module is made")
    if key == (0, ()):
        return _base
    digest = hashlib.sha256(repr((_base, key)).encode()).digest()
    return int.from_bytes(digest[:8], "little") & (2**63 - 1)


def _cuda() -> torch.Generator | None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.default_generators[torch.cuda.current_device()]
    return None


@contextmanager
def _swapped(key: tuple) -> Iterator[None]:
    cpu, cuda = torch.default_generator, _cuda()
    before = (cpu.get_state(), cuda.get_state() if cuda else None)
    state = _states.get(key)
    if state is None:
        cpu.manual_seed(_seed_of(key))
    else:
        cpu.set_state(state[0])
    if cuda is not None:
        if state is None or state[1] is None:
            cuda.manual_seed(_seed_of(key))
        else:
            cuda.set_state(state[1])
    try:
        yield
    finally:
        _states[key] = (cpu.get_state(), cuda.get_state() if cuda else None)
        cpu.set_state(before[0])
        if cuda is not None:
            cuda.set_state(before[1])


def snapshot() -> dict:
    """The states now; see `replayed`."""
    return dict(_states)


@contextmanager
def replayed(states: dict) -> Iterator[None]:
    """Inside, the states are those of a snapshot; after, what they were before."""
    before = dict(_states)
    _replace(states)
    try:
        yield
    finally:
        _replace(before)


def _replace(states: dict) -> None:
    _states.clear()
    _states.update(states)
