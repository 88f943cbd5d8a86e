"""Committed checkpoints are validated beside training, in order, each in a process that ends with its run or time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnout
from turnout import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    ReportedCheckpointStatus,
    Result,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from turnout.collective import barrier
from turnout.storage.location import StorageLocation
from turnout.storage.logs import read_log
from turnout.storage.reading import committed
from turnout.storage.record import CommitRecord
from turnout.storage.run_folder import RunFolder

VALIDATED, PENDING = ReportedCheckpointStatus.VALIDATED, ReportedCheckpointStatus.PENDING_VALIDATION
FAILED, TIMEOUT = ReportedCheckpointStatus.VALIDATION_FAILED, ReportedCheckpointStatus.VALIDATION_TIMEOUT


def fit(
    storage: Path, train: Callable[[], Any], validate: Callable[..., Any], task: Any = None, **run_config: Any
) -> Result:
    return DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, controller="process"),
        run_config=RunConfig(storage_path=storage, name="run", **run_config),
        validation_config=ValidationConfig(validate, task_config=task),
    ).fit()


def report(step: int, validation: bool | ValidationTaskConfig = True, **arguments: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"of-{turnout.get_context().get_world_rank()}").write_text(str(step))
        turnout.report({"step": step}, Checkpoint(folder), validation=validation, **arguments)


def step_of(checkpoint: Checkpoint) -> int:
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "of-1").read_text())


def records(storage: Path) -> list[CommitRecord]:
    return committed(RunFolder(StorageLocation.open(storage), "run"))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"waited in vain for {path}"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_training_goes_on_while_a_checkpoint_is_validated_and_its_metrics_are_merged(
    tmp_path: Path, mode: CheckpointUploadMode
) -> None:
    later = tmp_path / "later"

    def validate(checkpoint: Checkpoint, factor: int) -> dict[str, int]:
        wait_for(later)
        return {"score": factor * step_of(checkpoint), "pid": os.getpid()}

    def train() -> int:
        report(3, checkpoint_upload_mode=mode)
        report(4, ValidationTaskConfig(fn_kwargs={"factor": 100}), checkpoint_upload_mode=mode)
        report(5, validation=False)
        later.touch()
        return os.getpid()

    result = fit(tmp_path, train, validate, ValidationTaskConfig(fn_kwargs={"factor": 10}))
    found = records(tmp_path)
    assert [record.status for record in found] == [VALIDATED, VALIDATED, ReportedCheckpointStatus.COMMITTED]
    assert [record.metrics.get("score") for record in found] == [30, 400, None]
    others = {os.getpid(), *(result.return_values or ())}
    pids = {record.metrics.get("pid") for record in found[:2]}
    assert len(others) == 3
    assert not pids & others
    assert [metrics.get("score") for _, metrics in result.best_checkpoints or ()] == [30, 400, None]


def test_checkpoints_are_validated_one_at_a_time_in_the_order_of_their_reports(tmp_path: Path) -> None:
    log = tmp_path / "order"

    def validate(checkpoint: Checkpoint) -> dict[str, float]:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"begin {step_of(checkpoint)}\n")
            file.flush()
            file.write(f"end {step_of(checkpoint)}\n")
        return {}

    def train() -> None:
        for step in range(4):
            report(step)

    fit(tmp_path, train, validate)
    assert log.read_text().splitlines() == [f"{what} {step}" for step in range(4) for what in ("begin", "end")]


def test_ranks_that_ask_for_validated_checkpoints_wait_for_them_as_long_as_they_say(tmp_path: Path) -> None:
    let_through = tmp_path / "let-through"

    def validate(checkpoint: Checkpoint) -> dict[str, int]:
        wait_for(let_through)
        return {"score": step_of(checkpoint)}

    def train() -> list[list[tuple[str, Any]]]:
        report(0)
        report(1)
        seen: list[list[tuple[str, Any]]] = []
        for mode, timeout_s in (
            (CheckpointConsistencyMode.COMMITTED, None),
            (CheckpointConsistencyMode.VALIDATED, 0.05),
            (CheckpointConsistencyMode.VALIDATED, None),
        ):
            if len(seen) == 2:
                barrier()
                let_through.touch()
            reported = turnout.get_all_reported_checkpoints(mode, timeout_s)
            seen.append([(each.status.name, each.metrics.get("score")) for each in reported])
        return seen

    waiting, done = [("PENDING_VALIDATION", None)] * 2, [("VALIDATED", 0), ("VALIDATED", 1)]
    assert fit(tmp_path, train, validate).return_values == [[waiting, waiting, done]] * 2


def raises(checkpoint: Checkpoint) -> dict[str, int]:
    raise ZeroDivisionError("in the validation")


def exits(checkpoint: Checkpoint) -> dict[str, int]:
    print("the last words")  # noqa: T201  # what the test is about
    os._exit(3)


def returns_no_metrics(checkpoint: Checkpoint) -> dict[str, object]:
    return {"score": object()}


def reports(checkpoint: Checkpoint) -> dict[str, int]:
    turnout.report({})
    return {}


@pytest.mark.parametrize(
    ("validate", "text"),
    [
        (raises, "ZeroDivisionError: in the validation"),
        (exits, "exited with status 3"),
        (returns_no_metrics, "score"),
        (reports, "no run is active"),
    ],
)
def test_a_validation_that_fails_ends_nothing_and_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, validate: Callable[..., Any], text: str
) -> None:
    def train() -> str:
        report(0)
        report(1, validation=False)
        return "trained"

    assert fit(tmp_path, train, validate).return_value == "trained"
    assert [record.status for record in records(tmp_path)] == [FAILED, ReportedCheckpointStatus.COMMITTED]
    assert f"the validation of checkpoint {records(tmp_path)[0].name} failed; training goes on" in caplog.text
    assert text in caplog.text
    log = read_log(RunFolder(StorageLocation.open(tmp_path), "run"), "validation").decode()
    assert log == "--- checkpoint_000000 ---\n" + "the last words\n" * (validate is exits)


def test_a_validation_that_takes_too_long_is_killed_and_the_next_one_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pids = tmp_path / "pid"

    def validate(checkpoint: Checkpoint) -> dict[str, int]:
        if step_of(checkpoint) == 0:
            pids.write_text(str(os.getpid()))
            time.sleep(600)  # it hangs: what the test is about
        return {"score": 1}

    def train() -> None:
        report(0, ValidationTaskConfig(timeout_s=1.0))
        report(1)

    begin = time.monotonic()
    fit(tmp_path, train, validate)
    assert time.monotonic() - begin < 30
    assert [record.status for record in records(tmp_path)] == [TIMEOUT, VALIDATED]
    assert "took longer than its timeout_s=1, and was killed" in caplog.text
    assert not is_running(int(pids.read_text()))


def test_retention_keeps_what_is_being_validated_and_judges_it_by_what_comes_of_it(tmp_path: Path) -> None:
    let_through = tmp_path / "let-through"

    def validate(checkpoint: Checkpoint) -> dict[str, float]:
        wait_for(let_through)
        return {"score": 1.0 if step_of(checkpoint) == 1 else 0.0}

    def train() -> int:
        for step in range(5):
            report(step)
        count = len(turnout.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED))
        barrier()
        let_through.touch()
        return count

    config = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score")
    result = fit(tmp_path, train, validate, checkpoint_config=config)
    assert result.return_value == 5
    assert [record.metrics["step"] for record in records(tmp_path)] == [1, 4]


def test_a_validation_goes_on_beside_the_attempt_that_follows_one_that_failed(tmp_path: Path) -> None:
    second = tmp_path / "second"

    def validate(checkpoint: Checkpoint) -> dict[str, int]:
        with open(tmp_path / "begun", "a", encoding="utf-8") as file:
            file.write("x")
        wait_for(second)
        return {"score": 1}

    def train() -> None:
        if turnout.get_checkpoint() is None:
            report(0)
            wait_for(tmp_path / "begun")
            raise ValueError("the first attempt")
        report(1, validation=False)
        second.touch()

    fit(tmp_path, train, validate, failure_config=FailureConfig(max_failures=1))
    assert [record.status for record in records(tmp_path)] == [VALIDATED, ReportedCheckpointStatus.COMMITTED]
    assert (tmp_path / "begun").read_text() == "x"


def test_a_run_that_fails_gives_its_validations_up_in_time_and_they_are_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pids = tmp_path / "pid"

    def hangs(checkpoint: Checkpoint) -> dict[str, int]:
        pids.write_text(str(os.getpid()))
        time.sleep(600)  # what the test is about
        return {}

    def train() -> None:
        report(0)
        report(1)
        wait_for(pids)
        raise ValueError("the run's own")

    with pytest.raises(ValueError, match="the run's own"):
        fit(tmp_path, train, hangs, checkpoint_config=CheckpointConfig(drain_timeout_s=0.1))
    assert "2 validation(s) are given up, and made up for when the run is entered again" in caplog.text
    assert not is_running(int(pids.read_text()))
    assert [record.status for record in records(tmp_path)] == [PENDING] * 2
    fit(tmp_path, lambda: None, lambda checkpoint: {"score": step_of(checkpoint)})
    assert [(record.status, record.metrics["score"]) for record in records(tmp_path)] == [
        (VALIDATED, 0),
        (VALIDATED, 1),
    ]


PROGRAM = """
import sys, time, os
from pathlib import Path
from tests.storage.test_validations import fit, report
def hangs(checkpoint):
    Path(sys.argv[2]).write_text(str(os.getpid()))
    time.sleep(600)
def train():
    report(0)
fit(Path(sys.argv[1]), train, hangs)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_killed_or_interrupted_while_it_waits_takes_the_validation_with_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    pids = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(pids)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(pids)
            run = tmp_path / "run"
            process.send_signal(number)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    deadline = time.monotonic() + 2
    while is_running(int(pids.read_text())):
        assert time.monotonic() < deadline, "the validation outlives its driver"
        time.sleep(0.01)
    assert process.returncode == -number, said
    assert [record.status for record in records(tmp_path)] == [PENDING]
    if number == signal.SIGINT:
        assert "1 validation(s) are given up" in said
        assert not (run / "lease.json").exists()
    fit(tmp_path, lambda: None, lambda checkpoint: {"score": 1})
    assert [record.status for record in records(tmp_path)] == [VALIDATED]
