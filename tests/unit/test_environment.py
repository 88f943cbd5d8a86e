"""The three overrides, and the one line that says which track was chosen and why."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import turnout
from turnout import DataParallelTrainer, LoggingConfig, RunConfig, ScalingConfig, UsageError


def size() -> int:
    return turnout.get_context().get_world_size()


def fit(caplog: pytest.LogCaptureFixture, scaling_config: ScalingConfig | None = None) -> str:
    """Fit, and return the line that says on which track."""
    with caplog.at_level("INFO", logger="turnout"):
        DataParallelTrainer(size, scaling_config=scaling_config).fit()
    lines = [each.getMessage() for each in caplog.records if "trains" in each.getMessage() and each.levelname == "INFO"]
    assert len(lines) == 1
    return lines[0]


def test_one_line_says_which_track_was_chosen_and_why(caplog: pytest.LogCaptureFixture) -> None:
    line = fit(caplog, ScalingConfig(num_workers=0))
    assert re.fullmatch(
        r"run 'turnout-[\w-]+' trains in this process \(LocalController\), in memory, because num_workers=0", line
    )


def test_num_workers_is_overridden_and_the_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TURNOUT_NUM_WORKERS", "0")
    line = fit(caplog, ScalingConfig(num_workers=4, controller="local"))
    assert "in this process" in line
    assert "controller='local' (not used)" in line
    assert "TURNOUT_NUM_WORKERS=0 overrides the argument" in line


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "0x1"])
def test_an_override_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TURNOUT_NUM_WORKERS", text)
    with pytest.raises(UsageError, match=f"TURNOUT_NUM_WORKERS is '{text}'"):
        DataParallelTrainer(size).fit()


@pytest.mark.parametrize("text", ["", "  "])
def test_an_override_that_is_set_to_nothing_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setenv("TURNOUT_NUM_WORKERS", text)
    assert "overrides" not in fit(caplog, ScalingConfig(num_workers=0))


def test_the_controller_is_overridden(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TURNOUT_CONTROLLER", "local")
    line = fit(caplog, ScalingConfig(num_workers=1))
    assert "on 1 workers (LocalController)" in line
    assert "TURNOUT_CONTROLLER=local overrides the argument" in line


def test_an_unknown_controller_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_CONTROLLER", "slurm")
    with pytest.raises(UsageError, match=r"no controller is named 'slurm'; known: .*'local'"):
        DataParallelTrainer(size).fit()


def test_without_torchruns_trainer_its_variables_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "1")
    fit(caplog, ScalingConfig(num_workers=0))
    assert "torchrun's variables are set (RANK)" in caplog.text


def test_a_program_without_logging_sees_the_line_on_its_console(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import turnout, logging\n"
        "fit = turnout.DataParallelTrainer(lambda: turnout.report({'loss': 1}),"
        " scaling_config=turnout.ScalingConfig(num_workers=0)).fit\n"
        "fit(); print(logging.getLogger('turnout').handlers, logging.getLogger('turnout').level)\n"
        "logging.basicConfig(level='WARNING'); fit()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50, cwd=tmp_path
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "INFO turnout: run 'turnout-" in lines[0]
    assert "reported {'loss': 1}" in lines[1]
    assert done.stdout == "[<NullHandler (NOTSET)>] 0\n"


def test_overlapping_runs_leave_logging_as_it_was() -> None:
    logger = logging.getLogger("turnout")
    before = logger.level, list(logger.handlers)
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        first_is_in.set()
        second_is_in.wait()

    def second() -> None:
        second_is_in.set()
        first_is_out.wait()

    run_config = RunConfig(logging_config=LoggingConfig("DEBUG"))

    def run(train_fn: Callable[[], None], done: threading.Event | None = None) -> None:
        DataParallelTrainer(train_fn, run_config=run_config, scaling_config=ScalingConfig(num_workers=0)).fit()
        if done is not None:
            done.set()

    threads = [threading.Thread(target=run, args=(first, first_is_out)), threading.Thread(target=run, args=(second,))]
    threads[0].start()
    first_is_in.wait()
    threads[1].start()
    for thread in threads:
        thread.join()
    assert (logger.level, logger.handlers) == before


def test_a_log_level_that_is_asked_for_holds_during_fit_only(caplog: pytest.LogCaptureFixture) -> None:
    run_config = RunConfig(logging_config=LoggingConfig("info"))
    scaling_config = ScalingConfig(num_workers=0)
    DataParallelTrainer(lambda: turnout.report({"x": 1}), run_config=run_config, scaling_config=scaling_config).fit()
    assert "reported" in caplog.text
    caplog.clear()
    DataParallelTrainer(lambda: turnout.report({"x": 1}), scaling_config=scaling_config).fit()
    assert "reported" not in caplog.text
