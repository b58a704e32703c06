"""Checks that a generated program makes before its first collective."""

import torch

from nnscaler.errors import InputError


def check_input(name: str, value: object, shape: tuple, dtype: torch.dtype) -> None:
    """Raises when an argument is not what the program was made for.

    Args:
        name: the argument's.
        value: what was given.
        shape: the whole shape; None for a dynamic extent.
        dtype: its dtype.

    Raises:
        InputError: it is no tensor, or another shape or dtype.
    """
    if not isinstance(value, torch.Tensor):
        raise InputError(f"forward: argument {name} must be a tensor and is {type(value).__name__}")
    given = tuple(value.shape)
    if given != shape and (
        len(given) != len(shape)
        or any(want not in (None, have) for want, have in zip(shape, given, strict=True))
    ):
        want = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise InputError(
            f"forward: argument {name} has shape {given} and the program was made for ({want}); "
            "give that shape, or declare the extent as dynamic when parallelizing"
        )
    if value.dtype != dtype:
        raise InputError(
            f"forward: argument {name} is {value.dtype} and the program was made for {dtype}; "
            "convert it, or parallelize with a sample of that dtype"
        )


def check_constant(name: str, value: object, expected: object) -> None:
    """Raises when an argument that the program has as a constant is given another value.

    Args:
        name: the argument's.
        value: what was given.
        expected: what the program was made for.

    Raises:
        InputError: they differ.
    """
    if value is expected:
        return
    same = type(value) is type(expected) or (
        isinstance(value, (int, float)) and isinstance(expected, (int, float))
    )
    if not same or isinstance(value, torch.Tensor) or value != expected:
        given = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
        raise InputError(
            f"forward: argument {name} is {given} and the program was made for {expected!r}; "
            "give that, or parallelize with the other value"
        )
