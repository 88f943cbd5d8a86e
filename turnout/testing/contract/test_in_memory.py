"""What a run without storage keeps, on the tracks that have such runs."""

from __future__ import annotations

import os
from typing import Any

import pytest

import turnout
from turnout import CheckpointUploadMode, ValidationTaskConfig
from turnout.testing.contract.helpers import report_folder, text_in
from turnout.testing.tracks import Track


def test_a_run_in_memory_tracks_no_checkpoints_and_has_no_path(memory_track: Track) -> None:
    def train() -> list[turnout.ReportedCheckpoint]:
        report_folder({}, {"model": "m"})
        return turnout.get_all_reported_checkpoints()

    result = memory_track.fit(train)
    assert result.return_values == memory_track.on_every_rank([])
    assert result.path is None
    assert result.best_checkpoints is None
    assert result.metrics_dataframe is None


def test_a_run_in_memory_has_no_storage_and_says_how_to_get_one(memory_track: Track) -> None:
    def train() -> None:
        with pytest.raises(NotImplementedError, match=r"RunConfig\(storage_path=\.\.\.\)"):
            turnout.get_context().get_storage()

    memory_track.fit(train)


def test_older_checkpoints_leave_no_files(memory_track: Track) -> None:
    def train() -> list[bool]:
        paths = []
        for step in range(3):
            report_folder({"step": step}, {"model": str(step)})
            checkpoint = turnout.get_checkpoint()
            assert checkpoint is not None
            paths.append(checkpoint.path)
            del checkpoint
        return [os.path.exists(path) for path in paths]

    assert memory_track.fit(train).return_values == memory_track.on_every_rank([False, False, True])


def test_upload_arguments_have_no_effect_and_are_warned_of_once(
    memory_track: Track, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        arguments: dict[str, Any] = {
            "checkpoint_upload_mode": CheckpointUploadMode.ASYNC,
            "checkpoint_upload_fn": lambda checkpoint, name: checkpoint,
            "validation": ValidationTaskConfig(),
            "delete_local_checkpoint_after_upload": True,
        }
        for _ in range(2):
            report_folder({"x": 1}, {"model": "m"}, **arguments)

    result = memory_track.fit(train)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    for name in ("upload_mode", "upload_fn", "validation", "delete_local", "RunConfig(storage_path=...)"):
        assert name in warnings[0]
    assert text_in(result.checkpoint, "model") == "m"
