"""When callbacks are called and with what, on every track."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import turnout
import turnout.collective
from turnout import RunConfig, UsageError, UserCallback
from turnout.testing.contract.helpers import Recorder, rank, report_folder
from turnout.testing.tracks import Track


def test_a_callback_sees_every_report_with_the_metrics_of_every_rank(track: Track, tmp_path: Path) -> None:
    recorder = Recorder()

    def train() -> None:
        turnout.report({"step": 0, "rank": rank()})
        report_folder({"step": 1, "rank": rank()}, {"model": "one"})

    track.fit(train, run_config=RunConfig(storage_path=tmp_path, callbacks=[recorder]))
    assert recorder.reports == [
        ([{"step": 0, "rank": each} for each in range(track.world_size)], None),
        ([{"step": 1, "rank": each} for each in range(track.world_size)], {"model": "one"}),
    ]


def test_a_callback_is_told_of_the_run(track: Track) -> None:
    recorder = Recorder()
    run_config = RunConfig(name="named", callbacks=[recorder])
    track.fit(lambda config: turnout.report(config), train_loop_config={"lr": 1}, run_config=run_config)
    context = recorder.contexts[0]
    assert context.get_run_config().name == "named"
    assert context.train_loop_config == {"lr": 1}
    assert context.scaling_config == track.scaling_config
    assert context.run_id


def test_a_callback_that_raises_is_logged_and_ends_nothing(track: Track, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            raise RuntimeError("broken callback")

        def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
            raise RuntimeError("broken too")

    recorder = Recorder()

    def train() -> None:
        turnout.report({"x": 1})
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        track.fit(train, run_config=RunConfig(callbacks=[Broken(), recorder]))
    assert len(recorder.reports) == 1
    assert "RuntimeError: broken callback" in caplog.text
    assert "RuntimeError: broken too" in caplog.text


def test_a_callback_is_told_of_a_failure_with_the_exceptions_by_rank(track: Track) -> None:
    recorder = Recorder()

    def train() -> None:
        if rank() == track.world_size - 1:
            raise ValueError("the last rank's")
        turnout.collective.barrier()

    with pytest.raises(ValueError, match="the last rank's"):
        track.fit(train, run_config=RunConfig(callbacks=[recorder]))
    assert len(recorder.failures) == 1
    assert isinstance(recorder.failures[0][track.world_size - 1], ValueError)


def test_what_a_callback_does_to_its_metrics_changes_nothing(track: Track) -> None:
    class Meddler(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            metrics[0]["nested"]["y"] = "changed"
            metrics[0].clear()

    recorder = Recorder()
    metrics = {"x": 1, "nested": {"y": 2}}
    result = track.fit(lambda: turnout.report(metrics), run_config=RunConfig(callbacks=[Meddler(), recorder]))
    assert result.metrics == metrics
    assert recorder.reports[0][0][0] == metrics


def test_a_callback_stands_outside_the_session(track: Track) -> None:
    class Curious(UserCallback):
        def __init__(self) -> None:
            self.texts: list[str] = []

        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            try:
                turnout.report({"from": "callback"})
            except UsageError as error:
                self.texts.append(str(error))

    curious = Curious()
    result = track.fit(lambda: turnout.report({"x": 1}), run_config=RunConfig(callbacks=[curious]))
    assert "only inside a train function" in curious.texts[0]
    assert result.metrics == {"x": 1}
