"""What every generated module is: weights of this rank, their gradients, and their names."""

import copy
import hashlib
import inspect
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nnscaler.config import ComputeConfig
from nnscaler.errors import InputError, UnsupportedError
from nnscaler.flags import RuntimeFlag
from nnscaler.runtime import agreement, gnorm, random
from nnscaler.runtime.layout import AttrMeta, Layout
from nnscaler.runtime.mesh import Mesh, current_device, world_rank, world_size
from nnscaler.runtime.redistribute import all_gather, redistribute
from nnscaler.runtime.reducer import Reducer

live_modules: "weakref.WeakSet[ParallelModule]" = weakref.WeakSet()


class _classproperty:
    def __init__(self, fn: Callable):
        self._fn = fn

    def __get__(self, _instance, owner):
        return self._fn(owner)


@dataclass
class ParamsInfo:
    """Parameters that the same ranks hold alike.

    Attributes:
        ranks: those ranks of the job, this one included.
        params: the parameters.
        param_names: their names.
        zero_ngroups: always 1.
    """

    ranks: tuple[int, ...]
    params: list[nn.Parameter]
    param_names: list[str]
    zero_ngroups: int = 1


class ParallelModule(nn.Module):
    """Base of generated modules; its own class is never made.

    The generated class has the attributes below and the method ``rank_forward``. Its directory
    holds what `finish_init` reads, all of it with ``torch.load(weights_only=True)``:

    * ``fullmodel.pt.0``, ``.1``, ...: name -> whole tensor, parameters and persistent buffers;
      one name of a tie is enough.
    * ``npbuffer.pt``: the same of non-persistent buffers.
    * ``compute_config.pt``: the fields of `ComputeConfig`.
    * ``origin_module_metadata.pt``: ``origin_state_dict_names``, ``origin_param_names`` (each
      parameter once, frozen ones too), ``origin_shared_param_names``, of the original module and
      in its order.

    Attributes:
        mesh: the plan's mesh.
        plan_ngpus: ranks of the mesh.
        ties: groups of names that are one parameter.
        inputs: name -> (shape, dtype) of the arguments; None for a dynamic extent.
        eval_mode: ``same`` or ``flags``: evaluation runs this program; ``differs``: it cannot.
        eval_reason: why it cannot.
        compute_config: how it was parallelized; read from the directory where None.
        module_dir: its directory.
        runtime_version: version of nnscaler that made it.
        __orig_module_class__: the original class.
    """

    EXTRA_STATE_KEY = "CUBE_EXTRA_STATE"

    mesh: Mesh
    plan_ngpus: int
    ties: tuple[tuple[str, ...], ...] = ()
    inputs: dict[str, tuple] = {}
    eval_mode: str = "same"
    eval_reason: str = ""
    compute_config: ComputeConfig | None = None
    origin_module_metadata: dict[str, list] | None = None
    module_dir: Path | None = None
    runtime_version: str | None = None
    _describing = False  # A module is made for its layouts only.
    use_scheduler = False
    nmicros_per_scheduler_step = 1
    __orig_module_class__: type | None = None

    def __init__(self):
        if type(self) is ParallelModule:
            raise RuntimeError("ParallelModule is a base: make modules with nnscaler.parallelize")
        super().__init__()
        self._layouts: dict[str, Layout] = {}
        self._fullmap: dict[str, AttrMeta] | None = None
        self._reducers: list[Reducer] = []
        self._unset: set[str] = set()  # Parameters and persistent buffers without values.
        self._unset_buffers: set[str] = set()  # Non-persistent ones.
        self._need_sync = False  # A backward may have happened since the last reduction.
        self._holds_sums = False  # Gradients are sums of all ranks.
        self._built = False
        self._frozen: set[str] = set()  # Parameters that were not trained when it was built.

    def rank_forward(self, *args, **kwargs):
        """This rank's part of forward; generated."""
        raise NotImplementedError

    # Construction.

    def finish_init(self, init_params: bool = True, build_buckets: bool = True) -> None:
        """Ends construction: layouts, ties, values, buckets. The generated constructor calls it.

        All ranks of the job make the module.

        Args:
            init_params: load the weights; otherwise parameters stay without values.
            build_buckets: make the gradient buckets; otherwise call `build_buckets` later.
        """
        self._check_names()
        for first, *others in self.ties:
            owner, name = self._owner_of(first)
            for other in others:
                container, attribute = self._owner_of(other)
                setattr(container, attribute, getattr(owner, name))
        for name, tensor in self._all_tensors():
            layout = getattr(tensor, "nnscaler_layout", None)
            if layout is None:  # A literal, which has its values.
                shape = tuple(tensor.shape)
                layout = Layout(self.mesh, shape, shape)
            self._layouts[name] = layout
        if ParallelModule._describing:
            return
        self.mesh.locate()
        if self.module_dir is None:
            self.module_dir = Path(inspect.getfile(type(self))).parent
        self._read_config()
        agreement.verify_agreement(
            agreement.fingerprint(inspect.getfile(type(self))),
            f"generated code of {type(self).__name__} in {self.module_dir}",
        )
        random.agree_on_seed()
        for axis, size in self.mesh.axes.items():
            if size > 1:
                self.mesh.group(axis)
        self._mark_unset()
        self._read_values("npbuffer.pt", self._unset_buffers)
        if init_params:
            self._read_values("fullmodel.pt.*", self._unset)
            if self._unset:
                raise InputError(
                    f"{self.module_dir}: no values for {_some(self._unset)} in fullmodel.pt.*; "
                    "generate the code again, or give init_params=False and load a state dict"
                )
        self._blank()
        live_modules.add(self)
        if dist.is_initialized() and dist.get_backend() == "nccl":
            self.cuda()
        if build_buckets:
            self.build_buckets()

    def _check_names(self) -> None:
        for kind in (self._modules, self._parameters, self._buffers):
            for name in kind:
                if hasattr(ParallelModule, name):
                    raise UnsupportedError(
                        f"{type(self).__name__}: the model has an attribute {name!r}, a name that "
                        "ParallelModule uses itself; rename it, or put the model into a module"
                    )

    def _read_config(self) -> None:
        config, file = self.compute_config, self.module_dir / "compute_config.pt"
        if config is None and file.exists():
            config = ComputeConfig.safe_load_from_file(file, return_none_on_error=False)
        if config is None:
            config = ComputeConfig(self.mesh.size, world_size())
        if config.plan_ngpus != self.mesh.size or config.runtime_ngpus != world_size():
            raise InputError(
                f"{type(self).__name__}: made for plan_ngpus={config.plan_ngpus} and runtime_ngpus="
                f"{config.runtime_ngpus} on mesh {self.mesh.describe()}; the job has "
                f"{world_size()} ranks"
            )
        self.compute_config = config
        file = self.module_dir / "origin_module_metadata.pt"
        if self.origin_module_metadata is None and file.exists():
            self.origin_module_metadata = torch.load(file, weights_only=True)
        if self.origin_module_metadata is None:
            self.origin_module_metadata = self._derived_metadata()

    def _derived_metadata(self) -> dict[str, list]:
        """Names in the order of the weights' files, where nobody wrote the original ones down."""
        order: dict[str, int] = {}
        for file in sorted(self.module_dir.glob("fullmodel.pt.*")):
            for name in torch.load(file, map_location="cpu", mmap=True, weights_only=True):
                order.setdefault(name, len(order))
        temporary = self._non_persistent()

        def ordered(names: list[str]) -> list[str]:
            return sorted(names, key=lambda name: order.get(name, len(order)))

        return {
            "origin_state_dict_names": ordered(
                [name for name, _ in self._all_tensors() if name not in temporary]
            ),
            "origin_param_names": ordered([name for name, _ in self.named_parameters()]),
            "origin_shared_param_names": [list(tie) for tie in self.ties],
        }

    def _all_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers under all of their names."""
        yield from self.named_parameters(remove_duplicate=False)
        yield from self.named_buffers(remove_duplicate=False)

    def _owner_of(self, name: str) -> tuple[nn.Module, str]:
        path, _, attribute = name.rpartition(".")
        return self.get_submodule(path), attribute

    def _non_persistent(self) -> set[str]:
        return {
            f"{path}.{name}" if path else name
            for path, module in self.named_modules()
            for name in module._non_persistent_buffers_set
        }

    def _mark_unset(self) -> None:
        """Notes what must be given values; literals have theirs."""
        temporary = self._non_persistent()
        for name, tensor in self._all_tensors():
            if hasattr(tensor, "nnscaler_layout"):
                (self._unset_buffers if name in temporary else self._unset).add(name)

    @torch.no_grad()
    def _blank(self) -> None:
        """Fills what has no values with nan, so that nobody computes with what memory held."""
        for name, tensor in self._all_tensors():
            if name in self._unset or name in self._unset_buffers:
                if tensor.is_floating_point() or tensor.is_complex():
                    tensor.fill_(float("nan"))
                else:
                    tensor.zero_()

    @torch.no_grad()
    def _read_values(self, pattern: str, wanted: set[str]) -> None:
        tensors = dict(self._all_tensors())
        names_of: dict[int, list[str]] = {}
        for name, tensor in tensors.items():
            names_of.setdefault(id(tensor), []).append(name)
        coordinates = self.mesh.coordinates_of(world_rank())
        for file in sorted(self.module_dir.glob(pattern)):
            whole = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
            for name in [name for name in whole if name in wanted]:
                layout, value = self._layouts[name], whole[name]
                if tuple(value.shape) != layout.shape or value.dtype != tensors[name].dtype:
                    raise InputError(
                        f"{file}: {name} is {value.dtype} {tuple(value.shape)} and the generated "
                        f"code has {tensors[name].dtype} {layout.shape}; generate the code again"
                    )
                tensors[name].copy_(value[layout.slices(coordinates)])
                wanted.difference_update(names_of[id(tensors[name])])

    def _check_values(self) -> None:
        """Raises where something that forward may read has no values."""
        if self._unset_buffers:
            raise RuntimeError(
                "Non-persistent buffers haven't been initialized: "
                f"{_some(self._unset_buffers)}; call nnscaler.broadcast_weights, or fill them and "
                "call mark_non_persistent_buffers_inited()"
            )
        tensors = dict(self._all_tensors())
        empty = [
            name
            for name in sorted(self._unset)
            if tensors[name].is_floating_point()
            and tensors[name].numel()
            and bool(tensors[name].isnan().all())
        ]
        if empty:
            raise RuntimeError(
                f"parameters without values: {_some(empty)}; load a state dict, or make the module "
                "with init_params=True"
            )
        self._unset.clear()

    def __deepcopy__(self, memo: dict) -> "ParallelModule":
        """A copy with its own values and no gradient buckets: call `build_buckets` to train it."""
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        apart = {"_reducers": [], "_built": False, "_need_sync": False, "_holds_sums": False}
        for name, value in self.__dict__.items():
            twin.__dict__[name] = apart[name] if name in apart else copy.deepcopy(value, memo)
        live_modules.add(twin)
        return twin

    # Running.

    def _begin(self) -> None:
        if self._unset or self._unset_buffers:
            self._check_values()
        if torch.is_grad_enabled():
            if self._holds_sums:
                for reducer in self._reducers:
                    reducer.hold_reduced()
                self._holds_sums = False
            self._need_sync = True

    def forward(self, *args, **kwargs):
        """Runs this rank's part of the module.

        Arguments and results are those of the original module, whole and alike on the ranks of a
        plan.
        """
        if self.compute_config.use_end2end:
            raise UnsupportedError(
                f"{type(self).__name__} was parallelized with use_end2end: call train_step(samples) "
                "or infer_step(samples)"
            )
        self._begin()
        return self.rank_forward(*args, **kwargs)

    def train_step(
        self,
        samples: list,
        is_dummy_batch: list[bool] | None = None,
        scale_fn: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> list:
        """Forward and backward of all microbatches of a step; gradients are reduced once, at the end.

        Args:
            samples: the microbatches, each the first argument of forward.
            is_dummy_batch: microbatches that count nothing: their loss is multiplied by 0.
            scale_fn: changes the loss before backward.

        Returns:
            What forward returned for each.
        """
        samples = self._check_samples(samples)
        dummies = [False] * len(samples) if is_dummy_batch is None else list(is_dummy_batch)
        if len(dummies) != len(samples):
            raise ValueError(
                f"train_step: {len(samples)} samples and {len(dummies)} entries in is_dummy_batch"
            )
        self.zero_grad()
        outputs, before = [], (RuntimeFlag.skip_zero_grad, RuntimeFlag.skip_reducer)
        try:
            for i, (sample, dummy) in enumerate(zip(samples, dummies, strict=True)):
                RuntimeFlag.skip_reducer = i + 1 < len(samples)
                self._begin()
                output = self.rank_forward(sample)
                loss = self._loss_of(output)
                if dummy:
                    loss = loss * 0
                if scale_fn is not None:
                    loss = scale_fn(loss)
                loss.backward()
                outputs.append(output)
        finally:
            RuntimeFlag.skip_zero_grad, RuntimeFlag.skip_reducer = before
        self.sync_grad()
        return outputs

    @torch.no_grad()
    def infer_step(self, samples: list) -> list:
        """Forward of all microbatches without gradients."""
        samples = self._check_samples(samples)
        self._begin()
        return [self.rank_forward(sample) for sample in samples]

    def _check_samples(self, samples: list) -> list:
        if not self.compute_config.use_end2end:
            raise RuntimeError(
                f"{type(self).__name__}: train_step and infer_step need use_end2end=True in "
                "ComputeConfig; call the module instead"
            )
        if not isinstance(samples, (list, tuple)) or not samples:
            raise ValueError("train_step, infer_step: samples must be a list of microbatches")
        return list(samples)

    @staticmethod
    def _loss_of(output: Any) -> torch.Tensor:
        loss = output
        if isinstance(output, dict):
            loss = output.get("loss")
        elif isinstance(output, (tuple, list)):
            loss = output[0] if output else None
        elif not isinstance(output, torch.Tensor):
            loss = getattr(output, "loss", None)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss)
            raise RuntimeError(
                f"train_step: the first result of forward (or its entry 'loss') must be a scalar "
                f"tensor, and is {what}; write forward so that it returns loss, or (loss, other)"
            )
        return loss

    def train(self, mode: bool = True) -> "ParallelModule":
        """Switches to training or evaluation, as on the original module.

        Raises:
            UnsupportedError: evaluation is another program than the one that was generated.
        """
        if not mode and self.eval_mode == "differs":
            raise UnsupportedError(
                f"{type(self).__name__}: eval() is another program than training here"
                f"{': ' + self.eval_reason if self.eval_reason else ''}; parallelize the module "
                "in evaluation mode for it"
            )
        return super().train(mode)

    # Gradients.

    def build_buckets(self, param_clss: dict[nn.Parameter, object] | None = None) -> None:
        """Makes the gradient buckets, once.

        Args:
            param_clss: parameter -> class; a bucket has parameters of one class only.
        """
        if self._built:
            raise RuntimeError(f"{type(self).__name__}: build_buckets was called before")
        self._built = True
        config = self.compute_config
        found: dict[tuple, Reducer] = {}
        for name, p in self.named_parameters():
            if not p.requires_grad:
                self._frozen.add(name)
                continue
            layout = self._layouts[name]
            axes = tuple(a for a in self.mesh.axes if a in layout.reduce and self.mesh.axes[a] > 1)
            copies: tuple[str, ...] = ()
            if config.reducer_replicated_params:
                copies = tuple(
                    a for a in layout.replica_axes if a not in axes and self.mesh.axes[a] > 1
                )
            ranks = self.mesh.ranks((*axes, *copies), units=True)
            if len(ranks) == 1:
                continue
            key = (axes, copies)
            if key not in found:
                where = [*axes, *copies] + (["units"] if self.mesh.num_units > 1 else [])
                found[key] = Reducer(
                    ranks,
                    max_bucket_size_bytes=config.max_bucket_size_bytes,
                    async_op=config.use_async_reducer,
                    nreplicas=self.mesh.axis_size(copies),
                    field=f"reduce({','.join(where)})",
                )
            found[key].add_param(p)
        for reducer in found.values():
            reducer.build_buckets(param_clss)
        self._reducers.extend(found.values())

    def check_trainable(self) -> None:
        """Raises where a parameter was set to be trained that the program was not made to train."""
        thawed = [n for n, p in self.named_parameters() if p.requires_grad and n in self._frozen]
        if thawed:
            raise RuntimeError(
                f"{type(self).__name__}: {_some(thawed)} did not require a gradient when the "
                "program was made; set requires_grad before nnscaler.parallelize"
            )

    @property
    def reducers(self) -> list[Reducer]:
        """The reducers of its gradients."""
        return self._reducers

    def add_reducer(self, reducer: Reducer) -> None:
        """Adds a reducer, which is then driven like the others."""
        self._reducers.append(reducer)

    def set_grad_accumulation_steps(self, num_steps: int) -> None:
        """Number of backward passes in a step, for gradients that are reduced during backward."""
        for reducer in self._reducers:
            reducer.grad_accumulation_steps = num_steps

    def sync_grad(self, *, force: bool = False) -> None:
        """Adds up the gradients of all ranks if a forward happened since the last time.

        Args:
            force: in any case; ranks that had no forward take part then.
        """
        if not self._built and any(p.requires_grad for p in self.parameters()):
            raise RuntimeError(f"{type(self).__name__}: call build_buckets() before training")
        if not (self._need_sync or force):
            return
        for reducer in self._reducers:
            reducer.sync_grads()
        self._need_sync, self._holds_sums = False, True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients; does nothing while ``RuntimeFlag.skip_zero_grad`` is set."""
        if RuntimeFlag.skip_zero_grad:
            return
        if set_to_none or not self._built:
            for reducer in self._reducers:
                reducer.zero_grad()
        super().zero_grad(set_to_none)

    def gather_params(self) -> None:
        """Nothing to do: weights are not sharded by the optimizer."""

    def parameters_for_optimizer(self) -> list[nn.Parameter]:
        """Its trainable parameters, each once, in the order of ``parameters()``."""
        return [p for p in self.parameters() if p.requires_grad]

    def get_opt_params(
        self, prefix: str = "", classify_param_cls_fn: Callable[[str], object] | None = None
    ) -> dict[nn.Parameter, object]:
        """Its trainable parameters and their classes.

        Args:
            prefix: comes before each name.
            classify_param_cls_fn: full original name -> class.
        """
        return {
            p: classify_param_cls_fn(prefix + name) if classify_param_cls_fn else None
            for name, p in self.named_parameters()
            if p.requires_grad
        }

    def parameters_for_broadcast(self) -> list[torch.Tensor]:
        """All its parameters, each once."""
        return list(self.parameters())

    def parameters_for_calc_gnorm(self) -> list[ParamsInfo]:
        """Its trainable parameters, by the ranks that hold them alike."""
        found: dict[tuple[int, ...], ParamsInfo] = {}
        for name, p in self.named_parameters():
            if p.requires_grad:
                ranks = self.mesh.ranks(self._layouts[name].replica_axes, units=True)
                info = found.setdefault(ranks, ParamsInfo(ranks, [], []))
                info.params.append(p)
                info.param_names.append(name)
        return list(found.values())

    def clip_gnorm(self, max_norm: float | None = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The norm of all gradients of this module, clipped to ``max_norm`` where that is positive.

        All ranks must call this. Gradients are reduced before.

        Returns:
            The norm before clipping, alike on all ranks, and this rank's gradients.
        """
        self.sync_grad()
        return gnorm.clip(self.parameters_for_calc_gnorm(), max_norm)

    # Names, layouts, values.

    @classmethod
    def _layouts_of_class(cls) -> dict[str, tuple[Layout, torch.dtype, bool]]:
        if "_class_layouts" not in cls.__dict__:
            ParallelModule._describing = True
            try:
                with torch.device("meta"):
                    skeleton = cls(init_params=False, build_buckets=False)
            finally:
                ParallelModule._describing = False
            parameters = {name for name, _ in skeleton.named_parameters(remove_duplicate=False)}
            cls._class_layouts = {
                name: (skeleton._layouts[name], tensor.dtype, name in parameters)
                for name, tensor in skeleton._all_tensors()
            }
            cls._class_temporary = skeleton._non_persistent()
        return cls._class_layouts

    @classmethod
    def get_attr_meta_map(cls, rank: int | None = None) -> dict[str, AttrMeta]:
        """What a rank of the job holds: name -> `AttrMeta`.

        Args:
            rank: the rank; None for this one.

        Raises:
            ValueError: there is no such rank.
        """
        rank = world_rank() if rank is None else rank
        config = cls.compute_config
        ranks = config.runtime_ngpus if config is not None else max(world_size(), cls.mesh.size)
        if not 0 <= rank < ranks:
            raise ValueError(f"get_attr_meta_map: rank {rank} is not one of 0 to {ranks - 1}")
        coordinates = cls.mesh.coordinates_of(rank)
        return {
            name: AttrMeta(
                name, layout.shape, layout.slices(coordinates), layout.local_shape, dtype, is_param
            )
            for name, (layout, dtype, is_param) in cls._layouts_of_class().items()
        }

    @property
    def fullmap(self) -> dict[str, AttrMeta]:
        """What this rank holds; see `get_attr_meta_map`."""
        if self._fullmap is None:
            self._fullmap = type(self).get_attr_meta_map()
        return self._fullmap

    def get_full_map(self) -> dict[str, AttrMeta]:
        """The same as ``fullmap``."""
        return self.fullmap

    @_classproperty
    def dist_param_map(cls) -> dict[str, str]:
        """Name here -> name in the original module: the same."""
        return {name: name for name in cls._layouts_of_class()}

    @_classproperty
    def attr_meta_maps(cls) -> list[dict[str, AttrMeta]]:
        """`get_attr_meta_map` of every rank."""
        config = cls.compute_config
        ranks = config.runtime_ngpus if config is not None else max(world_size(), cls.mesh.size)
        return [cls.get_attr_meta_map(rank) for rank in range(ranks)]

    @_classproperty
    def module_dedup_group_size(cls) -> int:
        """Ranks that hold all weights between them."""
        return cls.mesh.size

    @_classproperty
    def optimizer_dedup_group_size(cls) -> int:
        """Ranks that hold all optimizer state between them."""
        return cls.mesh.size

    @property
    def rank(self) -> int:
        """This rank of the job."""
        return world_rank()

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return world_size()

    @classmethod
    def layout_digest(cls) -> str:
        """Digest of the mesh and of what is saved, how it is split: shards fit where it is the same."""
        layouts = [
            [name, layout.describe(), str(dtype)]
            for name, (layout, dtype, _) in sorted(cls._layouts_of_class().items())
            if name not in cls._class_temporary
        ]
        text = json.dumps([list(cls.mesh.axes.items()), layouts])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def get_non_persistent_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers that are in no state dict."""
        temporary = self._non_persistent()
        return {name: b for name, b in self.named_buffers() if name in temporary}

    @property
    def non_presistent_buffers_inited(self) -> bool:
        """Whether all non-persistent buffers have values (nnScaler's spelling)."""
        return not self._unset_buffers

    def mark_non_persistent_buffers_inited(self) -> None:
        """Says that all non-persistent buffers have values."""
        self._unset_buffers.clear()

    def mark_values_set(self) -> None:
        """Says that all parameters and persistent buffers have values."""
        self._unset.clear()

    # State dicts.

    def extra_state(self) -> dict:
        """What `merge_state_dicts` must know of this rank's shard: plain values."""
        metadata = self.origin_module_metadata
        return {
            "rank": world_rank(),
            "compute_config": self.compute_config.plain(),
            "dist_param_map": dict(self.dist_param_map),
            "param_area_map": {name: meta.plain() for name, meta in self.fullmap.items()},
            "cube_param_names": [name for name, _ in self.named_parameters()],
            "origin_state_dict_names": list(metadata["origin_state_dict_names"]),
            "origin_param_names": list(metadata["origin_param_names"]),
            "origin_shared_param_names": [
                list(tie) for tie in metadata["origin_shared_param_names"]
            ],
            "mesh": self.mesh.describe(),
            "plan_digest": self.layout_digest(),
        }

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + self.EXTRA_STATE_KEY] = self.extra_state()

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        if local_metadata.get("assign_to_params_buffers", False):
            raise InputError(
                f"{type(self).__name__}: load_state_dict(assign=True) would part the parameters "
                "from their gradient buckets; use assign=False"
            )
        extra = state_dict.pop(prefix + self.EXTRA_STATE_KEY, None)
        if extra is not None:
            self._check_shard(extra)
        else:
            self._cut(state_dict, prefix, error_msgs)
        self._unset -= {name for name in self._unset if prefix + name in state_dict}
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _check_shard(self, extra: dict) -> None:
        mine = self.layout_digest()
        if extra.get("plan_digest") != mine:
            raise InputError(
                f"load_state_dict: the shard was made under plan {extra.get('plan_digest')} (mesh "
                f"{extra.get('mesh')}) and this module runs plan {mine} (mesh "
                f"{self.mesh.describe()}); merge the shards of all ranks with "
                "nnscaler.merge_state_dicts and load the result"
            )
        if extra["rank"] % self.mesh.size != self.mesh.rank:
            raise InputError(
                f"load_state_dict: this is the shard of rank {extra['rank']} and rank "
                f"{world_rank()} loads it; load each rank's own"
            )

    def _cut(self, state_dict: dict, prefix: str, error_msgs: list[str]) -> None:
        """Replaces whole tensors by this rank's parts, and completes ties."""
        for tie in self.ties:
            given = next((name for name in tie if prefix + name in state_dict), None)
            if given is not None:
                for name in tie:
                    state_dict.setdefault(prefix + name, state_dict[prefix + given])
        for name, value in self.trim_merged_state_dict(
            state_dict, prefix, errors=error_msgs
        ).items():
            state_dict[name] = value

    def trim_merged_state_dict(
        self,
        state_dict: dict,
        prefix: str = "",
        *,
        device: torch.device | str | None = None,
        errors: list[str] | None = None,
    ) -> dict[str, torch.Tensor]:
        """This rank's parts of whole tensors.

        Args:
            state_dict: a merged state dict, or the original module's.
            prefix: of the module's names in it.
            device: moves the parts there.
            errors: takes what does not fit, instead of an exception.

        Returns:
            Name in ``state_dict`` -> part.
        """
        coordinates = self.mesh.coordinates_of(world_rank())
        temporary, parts, wrong = self._non_persistent(), {}, []
        for name, layout in self._layouts.items():
            value = state_dict.get(prefix + name)
            if value is None or name in temporary:
                continue
            if tuple(value.shape) != layout.shape:
                wrong.append(
                    f"size mismatch for {prefix + name}: the state dict has {tuple(value.shape)} "
                    f"and the whole tensor is {layout.shape}"
                )
                continue
            part = value[layout.slices(coordinates)]
            parts[prefix + name] = part if device is None else part.to(device)
        if errors is not None:
            errors.extend(wrong)
        elif wrong:
            raise InputError("; ".join(wrong))
        return parts

    def load_merged_state_dict(
        self, state_dict: dict, prefix: str = "", strict: bool = True
    ) -> list[str]:
        """Loads this rank's parts of a merged state dict, or of the original module's.

        Args:
            state_dict: whole tensors; names that the module has not are ignored.
            prefix: of the module's names in it.
            strict: raise where a name is missing.

        Returns:
            Names that are missing.

        Raises:
            RuntimeError: names are missing, or shapes differ.
        """
        own = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
        own.pop(self.EXTRA_STATE_KEY, None)
        known = {name for name in self._layouts if name not in self._non_persistent()}
        missing = self.load_state_dict(
            {name: value for name, value in own.items() if name in known}, strict=False
        ).missing_keys
        if missing and strict:
            raise RuntimeError(
                f"Missing key(s) in state_dict: {_some(prefix + m for m in missing)}"
            )
        return list(missing)

    def gather_state_dict(self, *, device: torch.device | str | None = None) -> dict:
        """The whole state dict on every rank; all ranks must call this.

        Args:
            device: where the result is; None leaves it where the module is.
        """
        temporary, result = self._non_persistent(), {}
        for name, tensor in self._all_tensors():
            if name in temporary:
                continue
            whole = tensor.detach()
            for dim, axes in self._layouts[name].shard.items():
                for axis in reversed(axes):
                    whole = redistribute(whole, self.mesh, [all_gather(axis, dim)])
            whole = whole.clone() if whole is tensor or not self._layouts[name].shard else whole
            result[name] = whole if device is None else whole.to(device)
        order = [n for n in self.origin_module_metadata["origin_state_dict_names"] if n in result]
        return {name: result[name] for name in order}

    # Devices.

    def _apply(self, fn, recurse=True):
        for dtype in {tensor.dtype for _, tensor in self._all_tensors()}:
            if fn(torch.empty(0, dtype=dtype)).dtype != dtype:
                raise ValueError(
                    f"{type(self).__name__}: the dtype of a parallel module is fixed; convert the "
                    "original module before nnscaler.parallelize"
                )
        return super()._apply(fn, recurse)

    def to(self, *args, **kwargs) -> "ParallelModule":
        """Moves the module to a device; nothing else may be changed.

        Raises:
            ValueError: a dtype or memory format is given.
        """
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None or memory_format is not None:
            raise ValueError(
                f"{type(self).__name__}: to() moves a parallel module to a device only; convert "
                "the original module before nnscaler.parallelize"
            )
        return super().to(device)

    def sleep(self) -> None:
        """Moves everything to the CPU and gives gradient buffers back; `wake_up` reverses it.

        Raises:
            RuntimeError: a parameter has a gradient.
        """
        if any(p.grad is not None for p in self.parameters()):
            raise RuntimeError("sleep: gradients are there; call zero_grad() first")
        for reducer in self._reducers:
            reducer.free()
        self.cpu()

    def wake_up(self, device: torch.device | str | None = None) -> None:
        """Moves everything back to a device; None is this rank's."""
        self.to(current_device() if device is None else device)


def _some(names) -> str:
    names = sorted(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
