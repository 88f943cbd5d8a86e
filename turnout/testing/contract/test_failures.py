"""What `fit()` raises, and what is retried, on every track."""

from __future__ import annotations

import os
import pickle
import traceback
from pathlib import Path

import pytest

import turnout
import turnout.collective
from turnout import FailureConfig, RunConfig, TrainingFailedError, UsageError, WorkerGroupError
from turnout.testing.contract.helpers import Recorder, is_first_time, rank, report_folder, text_in
from turnout.testing.tracks import Track


class NeedsTwoArguments(Exception):
    """One that cannot be rebuilt from its text."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code


def raises_value_error() -> None:
    raise ValueError("real cause")


def last_rank_raises() -> None:
    if rank() == turnout.get_context().get_world_size() - 1:
        raise ValueError("real cause")
    turnout.collective.barrier()


def test_what_the_function_raised_is_caught_as_its_own_class_and_as_turnouts(track: Track) -> None:
    for expected in (ValueError, TrainingFailedError, WorkerGroupError):
        with pytest.raises(expected, match="real cause"):
            track.fit(raises_value_error)


def test_the_error_shows_the_users_line(track: Track) -> None:
    with pytest.raises(ValueError, match="real cause") as caught:
        track.fit(raises_value_error)
    shown = "".join(traceback.format_exception(caught.value))
    assert f'File "{__file__}", line' in shown
    assert "in raises_value_error" in shown


def test_the_error_names_rank_attempt_and_run_and_maps_ranks_to_their_own_exceptions(track: Track) -> None:
    with pytest.raises(WorkerGroupError) as caught:
        track.fit(last_rank_raises, run_config=RunConfig(name="named"))
    last = track.world_size - 1
    assert f"rank {last} in attempt 0 of run 'named'" in "\n".join(caught.value.__notes__)
    assert isinstance(caught.value.worker_failures[last], ValueError)


def test_d05_an_exception_with_arguments_of_its_own_arrives_whole(track: Track) -> None:
    def train() -> None:
        raise NeedsTwoArguments(7, "loader")

    with pytest.raises(NeedsTwoArguments, match="code 7 at loader") as caught:
        track.fit(train)
    assert caught.value.code == 7
    assert isinstance(caught.value, WorkerGroupError)


def test_a_cause_is_kept(track: Track) -> None:
    def train() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise OSError(5, "outer", "file") from error

    with pytest.raises(OSError, match="outer") as caught:
        track.fit(train)
    assert (caught.value.errno, caught.value.filename) == (5, "file")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", [MemoryError, StopIteration])
def test_a_class_that_cannot_be_combined_is_the_cause_of_a_plain_error(track: Track, kind: type[Exception]) -> None:
    def train() -> None:
        raise kind("final")

    with pytest.raises(WorkerGroupError, match="final") as caught:
        track.fit(train)
    assert isinstance(caught.value.__cause__, kind)


def test_an_exception_group_is_the_cause_of_a_plain_error(track: Track) -> None:
    def train() -> None:
        raise ExceptionGroup("several", [ValueError("one")])

    with pytest.raises(WorkerGroupError, match="several") as caught:
        track.fit(train)
    assert isinstance(caught.value.__cause__, ExceptionGroup)


def test_max_failures_is_honoured_and_each_failure_is_called_back(retrying_track: Track) -> None:
    recorder = Recorder()
    run_config = RunConfig(failure_config=FailureConfig(max_failures=2), callbacks=[recorder])
    with pytest.raises(ValueError, match="real cause") as caught:
        retrying_track.fit(last_rank_raises, run_config=run_config)
    last = retrying_track.world_size - 1
    assert [type(failures[last]) for failures in recorder.failures] == [ValueError] * 3
    assert "training failure 3, with 2 allowed" in "\n".join(caught.value.__notes__)


def test_a_run_that_succeeds_on_a_retry_succeeds(retrying_track: Track) -> None:
    def train() -> str:
        if turnout.get_checkpoint() is None:
            report_folder({"attempt": 0}, {"model": "saved"})
            raise RuntimeError("once")
        return text_in(turnout.get_checkpoint(), "model")

    run_config = RunConfig(failure_config=FailureConfig(max_failures=-1))
    result = retrying_track.fit(train, run_config=run_config)
    assert result.return_values == retrying_track.on_every_rank("saved")
    assert result.metrics == {"attempt": 0}


def test_the_same_exception_at_the_same_line_before_any_report_is_called_deterministic(
    retrying_track: Track, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="real cause") as caught:
        retrying_track.fit(last_rank_raises, run_config=RunConfig(failure_config=FailureConfig(max_failures=1)))
    assert "deterministic" in "\n".join(caught.value.__notes__)
    assert "it starts again now, from its beginning" in caplog.text


def test_an_exception_after_a_report_is_not_called_deterministic(retrying_track: Track) -> None:
    def train() -> None:
        turnout.report({"x": 1})
        raise ValueError("late")

    with pytest.raises(ValueError, match="late") as caught:
        retrying_track.fit(train, run_config=RunConfig(failure_config=FailureConfig(max_failures=2)))
    assert "deterministic" not in "\n".join(caught.value.__notes__)


def test_every_rank_begins_anew_in_the_next_attempt(retrying_track: Track, tmp_path: Path) -> None:
    def train() -> list[int]:
        if is_first_time(tmp_path):
            turnout.report({"attempt": 0})
            raise RuntimeError("once")
        turnout.report({"attempt": 1})
        return [rank(), turnout.get_context().get_world_size()]

    recorder = Recorder()
    run_config = RunConfig(failure_config=FailureConfig(max_failures=1), callbacks=[recorder])
    result = retrying_track.fit(train, run_config=run_config)
    size = retrying_track.world_size
    assert result.return_values == [[each, size] for each in range(size)]
    assert result.metrics == {"attempt": 1}
    assert [metrics for metrics, _ in recorder.reports] == [[{"attempt": each}] * size for each in range(2)]


def test_an_error_of_turnouts_own_in_the_function_keeps_its_class(track: Track) -> None:
    def train() -> None:
        turnout.report({"x": object()})

    with pytest.raises(UsageError, match="'x'") as caught:
        track.fit(train)
    assert isinstance(caught.value, WorkerGroupError)


def test_the_error_pickles_with_its_class(track: Track) -> None:
    with pytest.raises(ValueError, match="real cause") as caught:
        track.fit(last_rank_raises)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, ValueError)
    assert isinstance(copy, WorkerGroupError)
    assert str(copy) == "real cause"
    assert isinstance(copy.worker_failures[track.world_size - 1], ValueError)


def test_an_exception_whose_attributes_cannot_be_set_is_told_all_the_same(track: Track) -> None:
    class Immutable(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError("immutable")

    def train() -> None:
        raise Immutable("the cause")

    with pytest.raises(WorkerGroupError, match="the cause"):
        track.fit(train)


def test_an_exception_whose_text_raises_is_told_all_the_same(track: Track) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def train() -> None:
        raise Broken("the cause")

    with pytest.raises(WorkerGroupError, match="Broken: 'the cause'"):
        track.fit(train, run_config=RunConfig(failure_config=FailureConfig(max_failures=1)))


def test_an_exception_that_does_not_pickle_is_told_by_its_class_and_text(track: Track) -> None:
    def train() -> None:
        error = RuntimeError("holds a pipe")
        error.pipe = open(os.devnull)  # type: ignore[attr-defined]  # noqa: SIM115
        try:
            raise error
        finally:
            error.pipe.close()  # type: ignore[attr-defined]

    with pytest.raises(WorkerGroupError, match="holds a pipe"):
        track.fit(train)
