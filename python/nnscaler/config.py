"""What the user configures: how many devices, and which options a parallel module has."""

import logging
import os
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nnscaler.errors import InputError, UnsupportedError

_logger = logging.getLogger(__name__)

TRACE_STRATEGIES = ("cpu", "cuda", "meta", "cuda_run_cpu_offload", "reuse_cache")


class ReuseType(Enum):
    """What ``parallelize`` does with generated code that is there already.

    Attributes:
        MATCH: reuse it when it was made from the same; an error when it was made from other things.
        OVERRIDE: generate anew.
        MOO: reuse it when it was made from the same, otherwise generate anew.
        GRAPH: plan and generate anew, reuse the exported graph.
    """

    MATCH = "match"
    OVERRIDE = "override"
    MOO = "moo"
    GRAPH = "graph"


class BroadcastGenFilesStrategy(Enum):
    """Which generated files are sent from rank 0 to the other nodes.

    Attributes:
        NONE: none; the nodes share a file system.
        ALL: all of them.
        NO_WEIGHTS: all but the weights.
        CODE: the code and its configuration.
    """

    NONE = "none"
    ALL = "all"
    NO_WEIGHTS = "no_weights"
    CODE = "code"


@dataclass(frozen=True)
class ComputeConfig:
    """How a module is parallelized.

    Attributes:
        plan_ngpus: devices that one plan uses, a scale unit.
        runtime_ngpus: devices of the whole job, a multiple of ``plan_ngpus``; the scale units are
            data parallel. None takes ``WORLD_SIZE`` from the environment.
        constant_folding: accepted for nnScaler's sake; constants are always folded where they can.
        trace_strategy: accepted for nnScaler's sake; modules are exported without running them.
        use_zero: sharding of the optimizer state; only 0 (none) is offered.
        zero_ngroups: number of groups that it is sharded in.
        zero_use_reduce_scatter: gradients by reduce-scatter.
        zero_param_level_sharding: shard whole parameters.
        inference_only: no backward pass.
        use_end2end: the first argument of forward is the sample, the first result the loss;
            ``train_step`` and ``infer_step`` drive the module.
        use_fbw: split backward; only False is offered.
        use_async_comm: asynchronous transfers of a pipeline; only False is offered.
        use_async_reducer: reduce gradients during backward.
        reducer_bucket_cap_mb: size of a gradient bucket in MiB; None or 0 is 25 with
            ``use_async_reducer`` and unlimited without.
        reducer_replicated_params: also reduce gradients that are alike on several ranks, and divide
            by their number, so that rounding cannot let the copies drift apart.
        reducer_none_grad: accepted for nnScaler's sake; a parameter that nobody used always keeps
            the gradient None.
        pas_config: options of the policy.
        user_config: whatever else changes the exported graph.
    """

    plan_ngpus: int
    runtime_ngpus: int | None = None
    constant_folding: bool = False
    trace_strategy: str = "cuda_run_cpu_offload"
    use_zero: int = 0
    zero_ngroups: int = 1
    zero_use_reduce_scatter: bool = False
    zero_param_level_sharding: bool = False
    inference_only: bool = False
    use_end2end: bool = False
    use_fbw: bool = False
    use_async_comm: bool = False
    use_async_reducer: bool = False
    reducer_bucket_cap_mb: float | None = None
    reducer_replicated_params: bool = False
    reducer_none_grad: bool = False
    pas_config: dict[str, Any] = field(default_factory=dict)
    user_config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        self._check_devices()
        if self.trace_strategy not in TRACE_STRATEGIES:
            _refuse("trace_strategy", self.trace_strategy, f"one of {', '.join(TRACE_STRATEGIES)}")
        cap = self.reducer_bucket_cap_mb
        if cap is not None and (not isinstance(cap, (int, float)) or cap < 0):
            _refuse("reducer_bucket_cap_mb", cap, "None or a number of MiB, at least 0")
        for name in ("pas_config", "user_config"):
            if not isinstance(getattr(self, name), dict):
                _refuse(name, getattr(self, name), "a dict")
        self._check_zero()
        if self.use_fbw and (not self.use_end2end or self.inference_only):
            raise InputError("ComputeConfig: use_fbw needs use_end2end and not inference_only")
        for name in ("use_fbw", "use_async_comm"):
            if getattr(self, name):
                raise UnsupportedError(
                    f"ComputeConfig: {name} is part of pipeline parallelism, which is not offered "
                    "yet; leave it out"
                )

    def _check_devices(self) -> None:
        if not _whole(self.plan_ngpus) or self.plan_ngpus <= 0:
            _refuse("plan_ngpus", self.plan_ngpus, "a whole number of devices, at least 1")
        if self.runtime_ngpus is None:
            world = os.environ.get("WORLD_SIZE")
            if world is None:
                raise InputError(
                    "ComputeConfig: runtime_ngpus is not given and WORLD_SIZE is not in the "
                    "environment; give it, or start with torchrun"
                )
            object.__setattr__(self, "runtime_ngpus", int(world))
        if not _whole(self.runtime_ngpus) or self.runtime_ngpus <= 0:
            _refuse("runtime_ngpus", self.runtime_ngpus, "a whole number of devices, at least 1")
        if self.runtime_ngpus % self.plan_ngpus:
            raise InputError(
                f"ComputeConfig: runtime_ngpus {self.runtime_ngpus} is not a multiple of plan_ngpus "
                f"{self.plan_ngpus}; every scale unit needs {self.plan_ngpus} devices"
            )

    def _check_zero(self) -> None:
        if self.use_zero not in (0, 1, 2, 3):
            _refuse("use_zero", self.use_zero, "0, 1 or 3")
        level = int(self.use_zero)
        if level == 2:
            _logger.warning("ComputeConfig: use_zero=2 means 3")
            level = 3
        object.__setattr__(self, "use_zero", level)
        if not level:
            if self.zero_ngroups != 1:
                _logger.warning("ComputeConfig: zero_ngroups is 1 without use_zero")
                object.__setattr__(self, "zero_ngroups", 1)
            return
        units = self.num_scale_units
        if not _whole(self.zero_ngroups) or self.zero_ngroups <= 0 or units % self.zero_ngroups:
            _refuse("zero_ngroups", self.zero_ngroups, f"a divisor of the {units} scale units")
        if self.zero_use_reduce_scatter and self.zero_ngroups != 1:
            raise InputError("ComputeConfig: zero_use_reduce_scatter needs zero_ngroups=1")
        raise UnsupportedError(
            f"ComputeConfig: use_zero={level} (sharded optimizer state) is not offered yet; "
            "use use_zero=0"
        )

    @property
    def num_scale_units(self) -> int:
        """Copies of the plan in the job."""
        return self.runtime_ngpus // self.plan_ngpus

    @property
    def gpu_config(self) -> dict[str, int]:
        """The two numbers of devices."""
        return {"plan_ngpus": self.plan_ngpus, "runtime_ngpus": self.runtime_ngpus}

    @property
    def graph_config(self) -> dict[str, Any]:
        """What changes the exported graph."""
        return {
            "constant_folding": self.constant_folding,
            "user_config": self.user_config,
            "inference_only": self.inference_only,
            "end2end_mode": self.use_end2end,
            "trace_strategy": self.trace_strategy,
        }

    @property
    def module_dedup_group_size(self) -> int:
        """Ranks that hold all weights between them."""
        return self.plan_ngpus

    @property
    def optimizer_dedup_group_size(self) -> int:
        """Ranks that hold all optimizer state between them."""
        return self.plan_ngpus

    @property
    def max_bucket_size_bytes(self) -> int | None:
        """``reducer_bucket_cap_mb`` in bytes."""
        cap = self.reducer_bucket_cap_mb
        return None if cap is None else int(cap * 1024 * 1024)

    def get_sync_group(self) -> tuple[list[int], "dist.ProcessGroup | None"]:
        """Ranks with this rank's weights in all scale units, and their group; all ranks call it."""
        from nnscaler.runtime.mesh import group_of, world_rank

        ranks = range(world_rank() % self.plan_ngpus, self.runtime_ngpus, self.plan_ngpus)
        return list(ranks), group_of(tuple(ranks))

    def plain(self) -> dict[str, Any]:
        """The fields, values that are no plain Python values as their text."""
        return _plain(asdict(self))

    @staticmethod
    def safe_dump_to_file(cfg: "ComputeConfig", file: str | Path) -> None:
        """Writes a configuration."""
        torch.save(cfg.plain(), file)

    @staticmethod
    def safe_load_from_file(
        file: str | Path, return_none_on_error: bool = True
    ) -> "ComputeConfig | None":
        """Reads a configuration.

        Args:
            file: what `safe_dump_to_file` wrote.
            return_none_on_error: None instead of an error where it cannot be read.
        """
        try:
            values = torch.load(file, weights_only=True)
            known = {f.name for f in fields(ComputeConfig)}
            return ComputeConfig(**{k: v for k, v in values.items() if k in known})
        except Exception as error:
            if return_none_on_error:
                return None
            raise InputError(f"{file}: no readable ComputeConfig: {error}") from error

    @staticmethod
    def safe_equals(a: "ComputeConfig | None", b: "ComputeConfig | None") -> bool:
        """Whether two configurations are the same when written."""
        if a is None or b is None:
            return a is b
        return a.plain() == b.plain()


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(name: str, value: object, allowed: str) -> None:
    raise InputError(f"ComputeConfig: {name} is {value!r}; it must be {allowed}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)
