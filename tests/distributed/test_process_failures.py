"""Ranks that fail, on the process track: each ends the run in seconds, with the rank, the user's line and the cause."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import turnout
from tests.distributed.ranks import failure_of, fit, line_of, text_of, wait_until
from tests.distributed.within import (
    _raise_group,
    _raise_local_class,
    _raise_locked,
    _raise_mute,
    _raise_os_error,
    _raise_refuses,
    _raise_stop,
    _raise_two_arguments,
    _raise_with_cause,
    crashed,
    killed,
    leaves_by_sys_exit_0,
    left,
    left_as_if_well,
    rank,
    reports_once_too_often,
    returns_early,
    skips_a_barrier,
)
from turnout import FailureConfig
from turnout.collective import barrier
from turnout.testing import police


@pytest.mark.parametrize("train", [skips_a_barrier, reports_once_too_often, returns_early, leaves_by_sys_exit_0])
def test_who_waits_for_a_rank_that_has_returned_fails_at_once(train: Callable[[], None], tmp_path: Path) -> None:
    text = failure_of(train, tmp_path, within_s=10)
    assert f"rank 0 waits in {'barrier #2' if train is skips_a_barrier else ''}" in text
    assert line_of(train, "waits") in text
    assert "rank 1 has returned after" in text
    assert "can never come" in text


def test_ranks_that_do_different_things_are_told_what_each_does(tmp_path: Path) -> None:
    def train() -> None:
        if rank() == 0:
            barrier()  # zero
        else:
            turnout.report({"step": 0})  # one

    text = failure_of(train, tmp_path)
    assert (
        f"rank 0 is in barrier #1 ({line_of(train, 'zero')}); rank 1 is in report #1 ({line_of(train, 'one')})" in text
    )
    assert f"on rank 0, {line_of(train, 'zero')}" in text


def test_a_rank_that_hangs_fails_the_run_with_its_own_line(tmp_path: Path) -> None:
    def train() -> None:
        if rank() == 1:
            while True:  # loops
                pass  # hangs
        barrier()  # waits

    text = failure_of(train, tmp_path, stall_timeout_s=0.3, stall_action="fail")
    assert f"rank 0 waits in barrier #1 ({line_of(train, 'waits')}) | rank 1 is in train ({__file__}:" in text
    assert f"on rank 1, {line_of(train, 'hangs')}" in text or f"on rank 1, {line_of(train, 'loops')}" in text
    assert "RunConfig.stall_timeout_s" in text


def test_a_rank_that_skips_a_checkpoint_is_named_with_the_calls_number_and_everyones_line(tmp_path: Path) -> None:
    def train() -> None:
        for step in range(3):
            if step == 1 and rank() == 1:
                time.sleep(1000)  # sleeps
            mine = tmp_path / f"{rank()}-{step}"
            mine.mkdir()
            (mine / "step").write_text(str(step))
            turnout.report({"step": step}, turnout.Checkpoint.from_directory(mine))  # reports

    text = failure_of(train, tmp_path / "runs", stall_timeout_s=0.3, stall_action="fail")
    assert "report #2 has waited 0.3 s for rank(s) 1" in text
    assert f"rank 0 waits in report #2 ({line_of(train, 'reports')})" in text
    assert f"rank 1 is in train ({line_of(train, 'sleeps')})" in text


def test_a_stall_that_only_warns_lets_the_run_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train() -> str:
        if rank() == 1:
            time.sleep(0.7)  # comes late
        barrier()
        return "done"

    with caplog.at_level(logging.WARNING):
        assert fit(train, tmp_path, stall_timeout_s=0.25).return_values == ["done", "done"]
    warnings = [each.getMessage() for each in caplog.records if "has waited" in each.getMessage()]
    assert 1 <= len(warnings) <= 2
    assert f"rank 1 is in train ({line_of(train, 'comes late')})" in warnings[0]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (killed, "was killed by SIGKILL (out of memory?)"),
        (crashed, "was killed by SIGSEGV"),
        (left, "exited with status 3 before the train function had ended (os._exit?)"),
        (left_as_if_well, "exited with status 0 before the train function had ended (os._exit?)"),
    ],
)
def test_a_rank_that_dies_is_named_with_its_signal_its_last_report_and_its_last_lines(
    end: Callable[[], None], said: str, tmp_path: Path
) -> None:
    def train() -> None:
        turnout.report({"step": 0})
        turnout.report({"step": 1})  # last
        if rank() == 1:
            os.write(1, b"about to\nend\n")
            end()
        barrier()

    text = failure_of(train, tmp_path)
    assert f"rank 1 {said}; last seen in report #2 ({line_of(train, 'last')}); reports made: 2" in text
    assert "its last lines of output:\n  about to\n  end" in text


@pytest.mark.parametrize("word", [3, "the disk is full"])
def test_sys_exit_with_a_word_is_a_failure_that_says_it(word: object, tmp_path: Path) -> None:
    def train() -> None:
        if rank() == 1:
            sys.exit(word)  # type: ignore[arg-type]  # leaves
        barrier()

    text = failure_of(train, tmp_path)
    assert f"WorkerGroupError: the train function ended in sys.exit({word!r})" in text
    assert "raised on rank 1" in text


def test_sys_exit_0_on_all_ranks_is_a_finish(tmp_path: Path) -> None:
    def train() -> None:
        turnout.report({"step": 0})
        sys.exit(0)

    result = fit(train, tmp_path)
    assert result.metrics == {"step": 0}
    assert result.return_values == [None, None]


def test_a_rank_that_raises_comes_before_those_that_waited_for_it(tmp_path: Path) -> None:
    def train() -> None:
        if rank() == 1:
            raise ValueError("real cause")  # raises
        barrier()

    with pytest.raises(ValueError, match="real cause") as caught:
        fit(train, tmp_path, num_workers=3)
    text = text_of(caught.value)
    assert f"on rank 1, {line_of(train, 'raises')} in train:" in text
    assert isinstance(caught.value, turnout.WorkerGroupError)
    assert next(iter(caught.value.worker_failures)) == 1
    assert "afterwards" not in text or text.index("real cause") < text.index("afterwards")


@pytest.mark.parametrize(
    ("raises", "name", "words"),
    [
        (_raise_two_arguments, "TwoArgumentsError", ["7: odd"]),
        (_raise_locked, "LockedError", ["it holds a lock"]),
        (_raise_mute, "MuteError", ["said nothing"]),
        (_raise_refuses, "RefusesToTravelError", ["stays here"]),
        (_raise_group, "ExceptionGroup", ["several (2 sub-exceptions)", "ValueError: one", "TypeError: two"]),
        (_raise_with_cause, "RuntimeError", ["outer", "KeyError: 'inner'", "direct cause"]),
        (_raise_stop, "StopIteration", ["too far"]),
        (_raise_local_class, "LocalError", ["of a function's own"]),
        (_raise_os_error, "FileNotFoundError", ["/does/not/exist"]),
    ],
)
def test_every_exception_arrives_with_its_class_its_text_and_its_traceback(
    raises: Callable[[], None], name: str, words: list[str], tmp_path: Path
) -> None:
    def train() -> None:
        if rank() == 1:
            raises()
        barrier()

    text = failure_of(train, tmp_path)
    assert name in text
    assert all(word in text for word in words)
    assert f"in {raises.__name__}" in text
    assert "required positional argument" not in text


def test_a_return_value_that_does_not_pickle_is_none_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> object:
        import threading

        return threading.Lock() if rank() == 1 else "well"

    with caplog.at_level(logging.WARNING):
        assert fit(train, tmp_path).return_values == ["well", None]
    assert any("rank 1: its return value is a lock and does not pickle" in each.getMessage() for each in caplog.records)


def test_a_killed_rank_resumes_from_the_last_commit(tmp_path: Path) -> None:
    def train() -> list[int]:
        checkpoint = turnout.get_checkpoint()
        start = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                start = 1 + int(Path(folder, "step").read_text())
        steps = []
        for step in range(start, 4):
            if step == 2 and start == 0 and rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            mine = tmp_path / f"mine-{rank()}-{step}"
            mine.mkdir(exist_ok=True)
            (mine / f"of-{rank()}").write_text("")
            if rank() == 0:
                (mine / "step").write_text(str(step))
            turnout.report({"step": step}, turnout.Checkpoint.from_directory(mine))
            steps.append(step)
        return steps

    with police():
        result = fit(train, tmp_path / "runs", failure_config=FailureConfig(max_failures=1))
    assert result.return_values == [[2, 3], [2, 3]]
    assert result.metrics == {"step": 3}


def test_a_rank_that_ignores_its_end_is_killed_within_seconds(tmp_path: Path) -> None:
    def train() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank() == 1:
            raise ValueError("real cause")
        while True:
            time.sleep(1)

    assert "real cause" in failure_of(train, tmp_path, within_s=12)


def test_a_rank_that_closes_all_its_files_ends_the_run_and_not_the_driver(tmp_path: Path) -> None:
    def train() -> None:
        turnout.report({"step": 0})
        if rank() == 1:
            os.closerange(0, 1024)
        turnout.report({"step": 1})

    cpu = psutil.Process().cpu_times()
    text = failure_of(train, tmp_path)
    assert "rank 1" in text
    assert psutil.Process().cpu_times().user - cpu.user < 1, "the driver spins"


def test_a_forked_copy_of_a_rank_cannot_end_it(tmp_path: Path) -> None:
    def train() -> int:
        pid = os.fork()
        if pid == 0:
            return 7
        os.waitpid(pid, 0)
        barrier()
        return rank()

    assert fit(train, tmp_path).return_values == [0, 1]


def test_nothing_is_left_running_after_a_failure(tmp_path: Path) -> None:
    def train() -> None:
        import subprocess

        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if rank() == 1:
            raise ValueError("real cause")
        barrier()

    failure_of(train, tmp_path)
    wait_until(lambda: not _descendants(), "the ranks' children to end", 2)


def _descendants() -> list[psutil.Process]:
    """What comes of this process, but for servers that wait."""
    servers = psutil.Process().children()
    return [each for each in psutil.Process().children(recursive=True) if each not in servers]
