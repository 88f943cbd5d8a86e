"""What `fit()` raises, and what is retried, on every track."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest

import turnout
from tests.contract.tracks import Track, report_folder, text_in
from turnout import FailureConfig, RunConfig, TrainingFailedError, UsageError, UserCallback, WorkerGroupError


class NeedsTwoArguments(Exception):
    """One that cannot be rebuilt from its text."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code


def raises_value_error() -> None:
    raise ValueError("real cause")


def test_what_the_function_raised_is_caught_as_its_own_class_and_as_turnouts(track: Track) -> None:
    for expected in (ValueError, TrainingFailedError, WorkerGroupError):
        with pytest.raises(expected, match="real cause"):
            track.fit(raises_value_error)


def test_the_tracebacks_last_frame_is_the_users_line(track: Track) -> None:
    with pytest.raises(ValueError, match="real cause") as caught:
        track.fit(raises_value_error)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("raises_value_error", 'raise ValueError("real cause")')


def test_the_error_names_rank_attempt_and_run_and_maps_ranks_to_their_own_exceptions(track: Track) -> None:
    with pytest.raises(WorkerGroupError) as caught:
        track.fit(raises_value_error, run_config=RunConfig(name="named"))
    notes = "\n".join(caught.value.__notes__)
    assert "rank 0 in attempt 0 of run 'named'" in notes
    assert {rank: type(error) for rank, error in caught.value.worker_failures.items()} == {0: ValueError}


def test_an_exception_with_arguments_of_its_own_arrives_whole_and_pickles(track: Track) -> None:
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


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_and_an_exit_leave_as_they_are_unretried(track: Track, kind: type[BaseException]) -> None:
    calls: list[int] = []

    def train() -> None:
        calls.append(1)
        raise kind(3)

    with pytest.raises(kind) as caught:
        track.fit(train, run_config=RunConfig(failure_config=FailureConfig(max_failures=3)))
    assert type(caught.value) is kind
    assert len(calls) == 1


class Recorder(UserCallback):
    def __init__(self) -> None:
        self.exceptions: list[dict[int, BaseException]] = []

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, BaseException]) -> None:
        self.exceptions.append(worker_exceptions)


def test_max_failures_is_honoured_and_each_failure_is_called_back(track: Track) -> None:
    recorder = Recorder()
    with pytest.raises(ValueError, match="real cause") as caught:
        track.fit(
            raises_value_error,
            run_config=RunConfig(failure_config=FailureConfig(max_failures=2), callbacks=[recorder]),
        )
    assert [{rank: type(error) for rank, error in each.items()} for each in recorder.exceptions] == [
        {0: ValueError}
    ] * 3
    assert "training failure 3, with 2 allowed" in "\n".join(caught.value.__notes__)


def test_a_run_that_succeeds_on_a_retry_succeeds(track: Track) -> None:
    def train() -> str:
        if turnout.get_checkpoint() is None:
            report_folder({"attempt": 0}, {"model": "saved"})
            raise RuntimeError("once")
        return text_in(turnout.get_checkpoint(), "model")

    result = track.fit(train, run_config=RunConfig(failure_config=FailureConfig(max_failures=-1)))
    assert result.return_value == "saved"
    assert result.metrics == {"attempt": 0}


def test_the_same_exception_at_the_same_line_before_any_report_is_called_deterministic(
    track: Track, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="real cause") as caught:
        track.fit(raises_value_error, run_config=RunConfig(failure_config=FailureConfig(max_failures=1)))
    assert "deterministic" in "\n".join(caught.value.__notes__)
    assert "it starts again now, from its beginning" in caplog.text


def test_an_exception_after_a_report_is_not_called_deterministic(track: Track) -> None:
    def train() -> None:
        turnout.report({"x": 1})
        raise ValueError("late")

    with pytest.raises(ValueError, match="late") as caught:
        track.fit(train, run_config=RunConfig(failure_config=FailureConfig(max_failures=2)))
    assert "deterministic" not in "\n".join(caught.value.__notes__)


def test_an_error_of_turnouts_own_in_the_function_keeps_its_class(track: Track) -> None:
    def train() -> None:
        turnout.report({"x": object()})

    with pytest.raises(UsageError, match="'x'") as caught:
        track.fit(train)
    assert isinstance(caught.value, WorkerGroupError)


def test_the_error_pickles_with_its_class(track: Track) -> None:
    with pytest.raises(ValueError, match="real cause") as caught:
        track.fit(raises_value_error)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, ValueError)
    assert isinstance(copy, WorkerGroupError)
    assert str(copy) == "real cause"
    assert isinstance(copy.worker_failures[0], ValueError)


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
