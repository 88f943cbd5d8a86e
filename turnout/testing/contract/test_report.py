"""What `report` keeps, converts and refuses, on every track."""

from __future__ import annotations

import enum
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from turnout import Checkpoint, CheckpointNotFoundError, UsageError, UserCallback
from turnout.testing.contract.helpers import report_folder, text_in
from turnout.testing.tracks import Track


def test_the_result_holds_the_last_metrics_of_a_run_that_reports_no_checkpoint(track: Track) -> None:
    def train() -> None:
        for step in range(3):
            turnout.report({"step": step})

    result = track.fit(train)
    assert result.metrics == {"step": 2}
    assert result.checkpoint is None


def test_a_run_that_reports_nothing_has_no_metrics(track: Track) -> None:
    assert track.fit(lambda: None).metrics is None


def test_a_report_without_a_checkpoint_never_forgets_the_last_one(track: Track) -> None:
    def train() -> str:
        report_folder({"step": 0}, {"model": "zero"})
        turnout.report({"step": 1})
        return text_in(turnout.get_checkpoint(), "model")

    result = track.fit(train)
    assert result.return_values == track.on_every_rank("zero")
    assert result.metrics == {"step": 1}
    assert text_in(result.checkpoint, "model") == "zero"


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.0), 2.0),
        (np.array([2.0]), 2.0),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([1.5], requires_grad=True), 1.5),
        (torch.tensor(2, dtype=torch.int32), 2),
        ("text", "text"),
        (None, None),
        ((1, 2), [1, 2]),
        ({"nested": {"x": np.float32(1)}}, {"nested": {"x": 1.0}}),
        (math.inf, math.inf),
        (Color.RED, "red"),
        (Level.HIGH, 3),
    ],
    ids=repr,
)
def test_a_scalar_of_any_library_is_kept_as_a_plain_value(track: Track, value: Any, kept: Any) -> None:
    def train() -> None:
        turnout.report({"value": value})

    metrics = track.fit(train).metrics
    assert metrics == {"value": kept}
    assert type(metrics["value"]) is type(kept)


def test_nan_is_kept_as_nan(track: Track) -> None:
    metrics = track.fit(lambda: turnout.report({"loss": math.nan})).metrics
    assert metrics is not None
    assert math.isnan(metrics["loss"])


def test_metrics_that_the_function_changes_after_the_report_are_kept_as_they_were(track: Track) -> None:
    def train() -> None:
        metrics: dict[str, Any] = {"loss": 1.0, "nested": {"list": [1]}}
        turnout.report(metrics)
        metrics["loss"] = 2.0
        metrics["nested"]["list"].append(2)

    assert track.fit(train).metrics == {"loss": 1.0, "nested": {"list": [1]}}


_CYCLE: dict[str, Any] = {}
_CYCLE["self"] = _CYCLE


@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({"weights": torch.zeros(2, 3)}, "'weights'.*torch.Tensor of shape \\(2, 3\\)"),
        ({"grads": np.zeros(4)}, "'grads'.*shape \\(4,\\)"),
        ({"deep": {"inner": object()}}, "'deep/inner'"),
        ({"tags": {"a"}}, "'tags'.*set"),
        ({"items": [1, b"x"]}, "'items\\[1\\]'.*bytes"),
        ({3: 1.0}, "key 3"),
        (5, "dict.*int"),
        (None, "dict.*NoneType"),
        ([("loss", 1)], "dict.*list"),
        (_CYCLE, "contain themselves"),
    ],
    ids=["tensor", "array", "object", "set", "bytes", "key", "int", "none", "list", "cycle"],
)
def test_metrics_that_json_cannot_hold_are_refused_where_they_are_reported(
    track: Track, metrics: Any, named: str
) -> None:
    def train() -> None:
        with pytest.raises(UsageError, match=named):
            turnout.report(metrics)
        turnout.report({"after": 1})

    assert track.fit(train).metrics == {"after": 1}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"checkpoint": "folder"}, "checkpoint='folder': takes a turnout.Checkpoint"),
        ({"checkpoint_upload_mode": "SYNC"}, "checkpoint_upload_mode='SYNC'"),
        ({"checkpoint_dir_name": "a/b"}, "checkpoint_dir_name='a/b'"),
        ({"checkpoint_dir_name": "/etc"}, "checkpoint_dir_name='/etc'"),
        ({"checkpoint_dir_name": ".."}, "checkpoint_dir_name='..'"),
        ({"checkpoint_dir_name": ""}, "checkpoint_dir_name=''"),
        ({"checkpoint_upload_fn": 3}, "checkpoint_upload_fn=3"),
        ({"validation": "yes"}, "validation='yes'"),
        ({"validation": True, "checkpoint": None}, "validation=True.*carries none"),
        ({"delete_local_checkpoint_after_upload": 1}, "delete_local_checkpoint_after_upload=1"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_arguments_that_cannot_be_meant_are_refused_with_field_and_value(
    track: Track, tmp_path: Path, arguments: dict[str, Any], named: str
) -> None:
    def train() -> None:
        given = {"checkpoint": Checkpoint(tmp_path), **arguments}
        with pytest.raises(UsageError, match=named):
            turnout.report({"x": 1}, **given)

    track.fit(train)


def test_a_checkpoint_folder_that_does_not_exist_is_an_error_that_names_it(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        with pytest.raises(CheckpointNotFoundError, match=r"missing does not exist"):
            turnout.report({"x": 1}, Checkpoint(tmp_path / "missing"))
        (tmp_path / "file").touch()
        with pytest.raises(FileNotFoundError, match=r"is a file; put it into a folder"):
            turnout.report({"x": 1}, Checkpoint(tmp_path / "file"))

    track.fit(train)


def test_reports_from_a_thread_of_the_train_function_count(track: Track) -> None:
    def train() -> None:
        threads = [threading.Thread(target=turnout.report, args=({"thread": i},)) for i in range(4)]
        for thread in threads:
            thread.start()
            thread.join()

    assert track.fit(train).metrics == {"thread": 3}


def test_reports_from_four_threads_at_once_lose_none(track: Track) -> None:
    class Counter(UserCallback):
        count = 0

        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            self.count += 1

    counter = Counter()

    def train() -> None:
        def work() -> None:
            for _ in range(500):
                turnout.report({"x": 1})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    track.fit(train, run_config=turnout.RunConfig(callbacks=[counter]))
    assert counter.count == 2_000


def test_reports_are_logged_at_info(track: Track, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="turnout"):
        track.fit(lambda: turnout.report({"loss": 0.25}))
    assert "reported {'loss': 0.25}" in caplog.text
