"""ComputeConfig: what it refuses, what it derives, how it is kept."""

import pytest
import torch

from nnscaler.config import BroadcastGenFilesStrategy, ComputeConfig, ReuseType
from nnscaler.errors import InputError, UnsupportedError

REFUSED = [
    ({"plan_ngpus": 0}, "plan_ngpus is 0; it must be a whole number of devices, at least 1"),
    ({"plan_ngpus": 1.5}, "plan_ngpus is 1.5; it must be a whole number of devices, at least 1"),
    ({"runtime_ngpus": -2}, "runtime_ngpus is -2; it must be a whole number of devices, at least 1"),
    ({"runtime_ngpus": 5}, "runtime_ngpus 5 is not a multiple of plan_ngpus 2; every scale unit needs 2 devices"),
    ({"trace_strategy": "gpu"}, "trace_strategy is 'gpu'; it must be one of cpu, cuda, meta, cuda_run_cpu_offload, reuse_cache"),
    ({"reducer_bucket_cap_mb": -1}, "reducer_bucket_cap_mb is -1; it must be None or a number of MiB, at least 0"),
    ({"pas_config": [1]}, "pas_config is [1]; it must be a dict"),
    ({"use_zero": 4}, "use_zero is 4; it must be 0, 1 or 3"),
    ({"use_zero": 1, "zero_ngroups": 0}, "zero_ngroups is 0; it must be a divisor of the 2 scale units"),
    ({"use_zero": 1, "zero_ngroups": 3}, "zero_ngroups is 3; it must be a divisor of the 2 scale units"),
    ({"use_zero": 1, "zero_ngroups": 2, "zero_use_reduce_scatter": True}, "zero_use_reduce_scatter needs zero_ngroups=1"),
    ({"use_fbw": True}, "use_fbw needs use_end2end and not inference_only"),
]  # fmt: skip


@pytest.mark.parametrize("fields, text", REFUSED, ids=[str(f) for f, _ in REFUSED])
def test_refused(fields, text):
    with pytest.raises(InputError) as caught:
        ComputeConfig(**{"plan_ngpus": 2, "runtime_ngpus": 4, **fields})
    assert str(caught.value) == f"ComputeConfig: {text}"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"use_zero": True}, "use_zero=1 (sharded optimizer state) is not offered yet; use use_zero=0"),
        ({"use_zero": 2}, "use_zero=3 (sharded optimizer state) is not offered yet; use use_zero=0"),
        ({"use_fbw": True, "use_end2end": True}, "use_fbw is part of pipeline parallelism, which is not offered yet; leave it out"),
        ({"use_async_comm": True}, "use_async_comm is part of pipeline parallelism, which is not offered yet; leave it out"),
    ],
)  # fmt: skip
def test_not_offered_yet(fields, text):
    with pytest.raises(UnsupportedError) as caught:
        ComputeConfig(2, 4, **fields)
    assert str(caught.value) == f"ComputeConfig: {text}"
    assert isinstance(caught.value, NotImplementedError)


def test_number_of_ranks_from_the_environment(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert ComputeConfig(2).runtime_ngpus == 6
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(InputError) as caught:
        ComputeConfig(2)
    assert str(caught.value) == (
        "ComputeConfig: runtime_ngpus is not given and WORLD_SIZE is not in the environment; give "
        "it, or start with torchrun"
    )


def test_derived():
    config = ComputeConfig(2, 8, reducer_bucket_cap_mb=1.5, zero_ngroups=3, user_config={"n": 1})
    assert (config.num_scale_units, config.zero_ngroups) == (4, 1)
    assert config.gpu_config == {"plan_ngpus": 2, "runtime_ngpus": 8}
    assert config.graph_config == {
        "constant_folding": False,
        "user_config": {"n": 1},
        "inference_only": False,
        "end2end_mode": False,
        "trace_strategy": "cuda_run_cpu_offload",
    }
    assert (config.module_dedup_group_size, config.optimizer_dedup_group_size) == (2, 2)
    assert config.max_bucket_size_bytes == 1572864
    assert ComputeConfig(1, 1).max_bucket_size_bytes is None
    assert ComputeConfig(1, 1).get_sync_group() == ([0], None)


def test_files(tmp_path):
    config = ComputeConfig(2, 4, pas_config={"mesh": "dp=2", "_fn": torch.relu}, use_end2end=True)
    file = tmp_path / "compute_config.pt"
    ComputeConfig.safe_dump_to_file(config, file)
    again = ComputeConfig.safe_load_from_file(file)
    assert ComputeConfig.safe_equals(config, again) and again.pas_config["mesh"] == "dp=2"
    assert not ComputeConfig.safe_equals(config, ComputeConfig(2, 4))
    assert not ComputeConfig.safe_equals(config, None) and ComputeConfig.safe_equals(None, None)
    file.write_text("nothing")
    assert ComputeConfig.safe_load_from_file(file) is None
    with pytest.raises(InputError, match="no readable ComputeConfig"):
        ComputeConfig.safe_load_from_file(file, return_none_on_error=False)


def test_enums_by_value():
    assert [r.value for r in ReuseType] == ["match", "override", "moo", "graph"]
    assert [b.value for b in BroadcastGenFilesStrategy] == ["none", "all", "no_weights", "code"]
