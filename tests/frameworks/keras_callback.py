"""Tests of the Keras callback in process, for a pytest of its own with one of Keras's backends: see test_keras.py."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ["KERAS_BACKEND"] != "tensorflow":
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # neither Keras nor the callback needs it then
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its backends
    import keras

import turnout
from turnout import Checkpoint, CheckpointUploadMode, DataParallelTrainer, RunConfig, ScalingConfig, UsageError
from turnout.tensorflow import ReportCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # of the backends

ROWS = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
LABELS = (ROWS[:, 0] > 0).astype("float32")


def new_model() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.1), loss, metrics=["mae"], run_eagerly=True)  # compiling takes longer
    return model


def fit_model(model: Any, callback: Any = None, epochs: int = 3, **options: Any) -> dict[str, list[float]]:
    callbacks = [] if callback is None else [callback]
    history: dict[str, list[float]] = model.fit(
        ROWS, LABELS, batch_size=8, shuffle=False, epochs=epochs, callbacks=callbacks, verbose=0, **options
    ).history
    return history


def run(train: Callable[[], Any], storage: Path | None = None, **run: Any) -> turnout.Result:
    return DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=None if storage is None else str(storage), **run),
    ).fit()


def reports_of(callback: Any, tmp_path: Path, **options: Any) -> tuple[list[dict[str, Any]], list[bool]]:
    """The metrics of each report, and whether it had a checkpoint."""
    seen: list[tuple[dict[str, Any], bool]] = []

    class Watch(turnout.UserCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            seen.append((metrics[0], checkpoint is not None))

    run(lambda: fit_model(new_model(), callback, **options), tmp_path, callbacks=[Watch()])
    return [metrics for metrics, _ in seen], [has for _, has in seen]


def test_this_is_the_backend_that_was_asked_for() -> None:
    assert keras.config.backend() == os.environ["KERAS_BACKEND"]


def test_each_epoch_is_reported_with_all_that_keras_logs_and_the_model() -> None:
    alone = fit_model(new_model(), validation_split=0.25)
    result = run(lambda: fit_model(new_model(), ReportCallback(), validation_split=0.25))
    assert result.metrics == {name: pytest.approx(values[-1], rel=1e-5) for name, values in alone.items()}
    assert result.checkpoint is not None
    assert ReportCallback.get_initial_epoch(result.checkpoint) == 3


def test_a_model_that_is_read_back_goes_on_as_if_it_had_never_stopped() -> None:
    def train(model: Any, **options: Any) -> Any:
        fit_model(model, ReportCallback(), **options)
        return [np.asarray(each) for each in model.get_weights()]

    half = run(lambda: train(new_model(), epochs=2))
    checkpoint = half.checkpoint
    assert checkpoint is not None
    model, epoch = ReportCallback.get_model(checkpoint), ReportCallback.get_initial_epoch(checkpoint)
    assert epoch == 2
    whole = run(lambda: train(new_model(), epochs=4))
    rest = run(lambda: train(model, epochs=4, initial_epoch=epoch))
    for expected, value in zip(whole.return_value, rest.return_value, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_metrics_and_checkpoints_come_at_the_events_that_were_chosen(tmp_path: Path) -> None:
    metrics, has_checkpoint = reports_of(
        ReportCallback("train_end", ["train_batch_end", "epoch_end"], metrics={"l": "loss"}), tmp_path, epochs=2
    )
    assert has_checkpoint == [False] * 8 + [True]
    assert all(list(each) == ["l"] and type(each["l"]) is float for each in metrics)
    assert metrics[-1] == metrics[-2]


def test_a_checkpoint_says_with_which_epoch_to_go_on(tmp_path: Path) -> None:
    def train() -> list[int]:
        events = ["train_begin", "epoch_begin", "train_batch_end", "test_end"]
        fit_model(new_model(), ReportCallback(events, events), epochs=2, validation_split=0.5)
        return [ReportCallback.get_initial_epoch(each.checkpoint) for each in turnout.get_all_reported_checkpoints()]

    assert run(train, tmp_path).return_value == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_an_upload_in_the_background_has_what_it_needs_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    callback = ReportCallback(checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
    result = run(lambda: fit_model(new_model(), callback), tmp_path / "runs")
    assert result.checkpoint is not None
    assert ReportCallback.get_initial_epoch(result.checkpoint) == 3
    ReportCallback.get_model(result.checkpoint)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"checkpoint_on": "epoch"}, r"checkpoint_on='epoch': takes one of 'epoch_begin', 'epoch_end'"),
        ({"checkpoint_on": 3}, "checkpoint_on=3"),
        ({"report_metrics_on": ["epoch_end", "fit_end"]}, "report_metrics_on='fit_end'"),
        ({"metrics": 3}, "metrics=3"),
        ({"metrics": {"a": 1}}, "metrics="),
        ({"checkpoint_upload_mode": CheckpointUploadMode.NO_UPLOAD}, "checkpoint_upload_mode="),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ReportCallback(**arguments)


def test_a_metric_that_keras_does_not_log_is_refused_with_those_that_it_does() -> None:
    with pytest.raises(UsageError, match="metrics='acc': Keras does not log it at epoch_end; it logs 'loss', 'mae'"):
        run(lambda: fit_model(new_model(), ReportCallback(metrics=["loss", "acc"]), epochs=1))


def test_a_checkpoint_of_something_else_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "other.txt").touch()
    with pytest.raises(UsageError, match=r"no model\.keras.*it holds other\.txt"):
        ReportCallback.get_model(Checkpoint(tmp_path))
