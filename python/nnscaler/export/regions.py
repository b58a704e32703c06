"""Regions of `torch.utils.checkpoint`, which the tracer would inline without a trace."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils import checkpoint as torch_checkpoint

from nnscaler.export.intercept import calls_to, current_tracer
from nnscaler.export.source import line_of_caller

#: In the metadata of a node: the numbers of the regions that it lies in, outermost first.
REGIONS = "nnscaler_regions"


@dataclass
class Region:
    preserve_rng_state: bool


@dataclass
class Regions:
    """Records the calls of `torch.utils.checkpoint.checkpoint` while a model is exported."""

    regions: list[Region] = field(default_factory=list)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with calls_to({torch_checkpoint.checkpoint: self._checkpoint}):
            yield

    def _checkpoint(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        tracer = current_tracer()
        if tracer is None:
            return original(*args, **kwargs)
        return self._run(tracer, *args, **kwargs)

    def _run(
        self,
        tracer: Any,
        function: Callable,
        *args: Any,
        use_reentrant: bool | None = None,
        context_fn: Callable = torch_checkpoint.noop_context_fn,
        determinism_check: str = "default",
        debug: bool = False,
        early_stop: bool = True,
        preserve_rng_state: bool = True,
        **kwargs: Any,
    ) -> Any:
        """The function runs inline; the nodes that it adds make the region."""
        if context_fn is not torch_checkpoint.noop_context_fn:
            warnings.warn(
                f"{line_of_caller(sys._getframe(2))}: checkpoint's context_fn is left out: the whole region will be "
                "recomputed in backward",
                stacklevel=2,
            )
        index = len(self.regions)
        self.regions.append(Region(preserve_rng_state))
        before = next(reversed(tracer.graph.nodes), None)
        result = function(*args, **kwargs)
        node = next(reversed(tracer.graph.nodes), None)
        while node is not before:
            node.meta.setdefault(REGIONS, []).insert(0, index)
            node = node.prev
        return result
