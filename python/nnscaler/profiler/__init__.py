"""Measuring: the timer."""

from nnscaler.profiler.timer import CudaTimer

__all__ = ["CudaTimer"]
