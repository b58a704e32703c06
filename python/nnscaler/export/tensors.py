"""A module's tensors while it is exported: no copies of its weights, and afterwards all as it was."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake

_CONTAINERS = (list, dict, set, OrderedDict)


class Snapshot:
    """The attributes of a module and all below it, and the lists, dicts and sets held in them."""

    def __init__(self, module: nn.Module) -> None:
        self._attributes = {id(m): (m, dict(m.__dict__)) for m in module.modules()}
        self._contents = [
            (value, value.copy())
            for _, attributes in self._attributes.values()
            for value in attributes.values()
            if type(value) in _CONTAINERS
        ]

    def restore(self) -> None:
        for m, before in self._attributes.values():
            m.__dict__.clear()
            m.__dict__.update(before)
        for container, before in self._contents:
            container.clear()
            container.extend(before) if type(container) is list else container.update(before)

    def changed(self) -> Iterator[tuple[nn.Module, list[str]]]:
        """Modules with the names of attributes that hold another number, or a tensor that was not there."""
        for module, before in self._attributes.values():
            names = [
                name
                for name, value in module.__dict__.items()
                if isinstance(value, (torch.Tensor, bool, int, float, str))
                and name != "training"
                and value is not before.get(name)
                and (isinstance(value, torch.Tensor) or name in before and value != before[name])
            ]
            if names:
                yield module, names


@contextlib.contextmanager
def left_as_it_was(module: nn.Module) -> Iterator[Snapshot]:
    """Undoes what happens to the modules."""
    before = Snapshot(module)
    try:
        yield before
    finally:
        before.restore()


def without_value(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape and no numbers: on the meta device, or fake."""
    return tensor.is_meta or is_fake(tensor)


def give_devices(module: nn.Module) -> None:
    """Puts fake tensors on the CPU in the place of parameters and buffers without values.

    Tensors that a forward makes (`torch.tensor([0.5])`) are on the CPU, and could not meet the meta device.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, torch.Tensor] = {}
    for m in module.modules():
        for tensors in (m._parameters, m._buffers):
            for name, tensor in tensors.items():
                if tensor is None or not without_value(tensor):
                    continue
                if id(tensor) not in made:
                    with mode:
                        fake = torch.empty_strided(
                            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
                        )
                    if isinstance(tensor, nn.Parameter):
                        fake = nn.Parameter(fake, tensor.requires_grad)
                    made[id(tensor)] = fake
                tensors[name] = made[id(tensor)]


def valueless(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the meta device like this one; takes no space in an archive."""
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(meta, tensor.requires_grad)
    return meta


def describe_tensors(module: nn.Module) -> dict[str, Any]:
    """What the archive does not tell of parameters and buffers: ties, flags, lost values."""
    groups: dict[int, list[str]] = {}
    parameters, buffers = {}, {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
        parameters[name] = {"requires_grad": parameter.requires_grad}
    for prefix, m in module.named_modules(remove_duplicate=False):
        for name, buffer in m._buffers.items():
            if buffer is None:
                continue
            fqn = f"{prefix}.{name}" if prefix else name
            groups.setdefault(id(buffer), []).append(fqn)
            buffers[fqn] = {"persistent": name not in m._non_persistent_buffers_set}
            if without_value(buffer):
                buffers[fqn]["has_value"] = False
    order = {name: i for i, name in enumerate(module.state_dict(keep_vars=True))}
    ties = [
        sorted(g, key=lambda n: order.get(n, len(order))) for g in groups.values() if len(g) > 1
    ]
    return {"ties": ties, "parameters": parameters, "buffers": buffers}
