"""Every configuration refuses what cannot be meant, names the field, pickles, and reads as its constructor."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnout
from turnout import (
    CheckpointConfig,
    DataConfig,
    FailureConfig,
    LoggingConfig,
    PreemptionInfo,
    RunConfig,
    ScalingConfig,
    UnsupportedError,
    UsageError,
    ValidationConfig,
    ValidationTaskConfig,
)

REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (ScalingConfig, {"num_workers": -1}, "num_workers=-1"),
    (ScalingConfig, {"num_workers": "2"}, "num_workers='2'"),
    (ScalingConfig, {"num_workers": True}, "num_workers=True"),
    (ScalingConfig, {"num_workers": 2.0}, "num_workers=2.0"),
    (ScalingConfig, {"num_workers": None}, "num_workers=None"),
    (ScalingConfig, {"num_workers": (0, 2)}, "num_workers=0.*1 <= min <= max"),
    (ScalingConfig, {"num_workers": (2, 1)}, r"num_workers=\(2, 1\)"),
    (ScalingConfig, {"num_workers": (1, 2, 3)}, r"num_workers=\(1, 2, 3\)"),
    (ScalingConfig, {"num_workers": [1, 2]}, r"num_workers=\[1, 2\]"),
    (ScalingConfig, {"use_gpu": 1}, "use_gpu=1"),
    (ScalingConfig, {"use_gpu": True, "resources_per_worker": {"GPU": 0}}, "resources_per_worker.*use_gpu=True"),
    (ScalingConfig, {"resources_per_worker": {"GPU": 1}}, "resources_per_worker.*use_gpu=True"),
    (ScalingConfig, {"resources_per_worker": {"CPU": -1}}, r"resources_per_worker\['CPU'\]=-1"),
    (ScalingConfig, {"resources_per_worker": 4}, "resources_per_worker=4"),
    (ScalingConfig, {"placement_strategy": "pack"}, "placement_strategy='pack'.*'PACK', 'SPREAD'"),
    (ScalingConfig, {"controller": ""}, "controller=''"),
    (ScalingConfig, {"label_selector": [{}], "num_workers": 2}, "label_selector.*2 of them"),
    (ScalingConfig, {"elastic_resize_monitor_interval_s": -1}, "elastic_resize_monitor_interval_s=-1"),
    (RunConfig, {"name": "../x"}, r"name='\.\./x'"),
    (RunConfig, {"name": "/x"}, "name='/x'"),
    (RunConfig, {"name": ""}, "name=''"),
    (RunConfig, {"name": " x "}, "name=' x '"),
    (RunConfig, {"name": "x\n"}, "name="),
    (RunConfig, {"name": 3}, "name=3"),
    (RunConfig, {"name": "ü" * 200}, "at most 255 bytes"),
    (RunConfig, {"storage_path": ""}, "storage_path=''"),
    (RunConfig, {"storage_path": 3}, "storage_path=3"),
    (RunConfig, {"storage_path": Path("s3://bucket/x")}, "storage_path=.*pass it as text"),
    (RunConfig, {"storage_path": "s3://"}, "storage_path='s3://'"),
    (RunConfig, {"storage_path": "a\0b"}, "NUL"),
    (RunConfig, {"storage_filesystem": object()}, "storage_filesystem"),
    (RunConfig, {"failure_config": 3}, "failure_config=3: takes a turnout.FailureConfig"),
    (RunConfig, {"checkpoint_config": {}}, "checkpoint_config={}"),
    (RunConfig, {"logging_config": "INFO"}, "logging_config='INFO'"),
    (RunConfig, {"callbacks": [print]}, "callbacks=.*UserCallback"),
    (RunConfig, {"callbacks": [turnout.UserCallback]}, "callbacks=.*instances"),
    (RunConfig, {"on_existing": "replace"}, "on_existing='replace'.*'resume', 'error', 'overwrite'"),
    (RunConfig, {"start_timeout_s": 0}, "start_timeout_s=0"),
    (RunConfig, {"stall_timeout_s": float("nan")}, "stall_timeout_s=nan"),
    (RunConfig, {"stall_action": "die"}, "stall_action='die'"),
    (RunConfig, {"worker_runtime_env": []}, "worker_runtime_env"),
    (FailureConfig, {"max_failures": -5}, "max_failures=-5"),
    (FailureConfig, {"max_failures": True}, "max_failures=True"),
    (FailureConfig, {"preemption_grace_s": -1.0}, r"preemption_grace_s=-1\.0"),
    (CheckpointConfig, {"num_to_keep": 0}, "num_to_keep=0"),
    (CheckpointConfig, {"checkpoint_score_order": "best"}, "checkpoint_score_order='best'"),
    (CheckpointConfig, {"checkpoint_score_attribute": ""}, "checkpoint_score_attribute=''"),
    (CheckpointConfig, {"verify": "no"}, "verify='no'"),
    (CheckpointConfig, {"max_pending_uploads": 0}, "max_pending_uploads=0"),
    (CheckpointConfig, {"drain_timeout_s": 0}, "drain_timeout_s=0"),
    (DataConfig, {"datasets_to_split": "train"}, "datasets_to_split='train'"),
    (LoggingConfig, {"log_level": "LOUD"}, "log_level='LOUD'"),
    (ValidationConfig, {"fn": 3}, "fn=3"),
    (ValidationConfig, {"fn": print, "task_config": {}}, "task_config={}"),
    (ValidationTaskConfig, {"timeout_s": 0}, "timeout_s=0"),
    (ValidationTaskConfig, {"fn_kwargs": [1]}, r"fn_kwargs=\[1\]"),
]


@pytest.mark.parametrize(("config", "arguments", "named"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_meant_is_refused_with_field_and_value(
    config: Callable[..., Any], arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        config(**arguments)
    assert isinstance(caught.value, ValueError)


def test_tpus_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="use_tpu"):
        ScalingConfig(use_tpu=True)


def a_validation(checkpoint: turnout.Checkpoint) -> dict[str, float]:
    return {"score": 1.0}


CONFIGS = [
    ScalingConfig(),
    ScalingConfig(num_workers=(1, 4), use_gpu=True, resources_per_worker={"CPU": 2}),
    ScalingConfig(num_workers=2, label_selector=[{"zone": "a"}, {"zone": "b"}], placement_strategy="SPREAD"),
    RunConfig(),
    RunConfig(name="r", storage_path="/tmp/x", failure_config=FailureConfig(max_failures=3), stall_action="fail"),
    FailureConfig(max_failures=-1, preemption_grace_s=2),
    CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="eval/loss", checkpoint_score_order="min"),
    DataConfig(datasets_to_split=["train"], equal=False),
    LoggingConfig(log_level="debug"),
    ValidationTaskConfig(fn_kwargs={"a": 1}, timeout_s=3),
    PreemptionInfo(deadline_ms=5, preempted_node_to_ranks={"b": [3, 1], "a": [0]}),
]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_a_configuration_reads_as_its_constructor_pickles_and_copies(config: Any) -> None:
    assert (
        eval(repr(config), vars(turnout) | {type(config).__name__: type(config), "FailureConfig": FailureConfig})
        == config
    )
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config


def test_a_validation_config_pickles() -> None:
    config = ValidationConfig(fn=a_validation, task_config=ValidationTaskConfig(fn_kwargs={"a": 1}))
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ScalingConfig().num_workers = 3  # type: ignore[misc]


def test_every_spelling_of_a_local_path_names_the_same_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings: list[Any] = [
        "runs",
        "./runs/",
        tmp_path / "runs",
        f"{tmp_path}/runs//",
        f"file://{tmp_path}/runs",
        "~/runs",
    ]
    assert {RunConfig(storage_path=each).storage_path for each in spellings} == {str(tmp_path / "runs")}


def test_a_file_uri_may_have_escapes() -> None:
    assert RunConfig(storage_path="file:///tmp/a%20b").storage_path == "/tmp/a b"
    assert turnout.Checkpoint("file:///tmp/a%20b").path == "/tmp/a b"


def test_a_uri_is_kept_without_its_trailing_slash() -> None:
    assert RunConfig(storage_path="s3://bucket/runs/").storage_path == "s3://bucket/runs"


def test_integers_of_other_libraries_count_as_integers() -> None:
    import numpy as np

    config = ScalingConfig(num_workers=np.int64(2))  # type: ignore[arg-type]
    assert type(config.num_workers) is int


def test_a_preemption_notice_lists_nodes_and_ranks_in_order() -> None:
    info = PreemptionInfo(preempted_node_to_ranks={"b": [3, 1], "a": [0]})
    assert info.preempted_node_ids == ["a", "b"]
    assert info.preempted_ranks == [0, 1, 3]
