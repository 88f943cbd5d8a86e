"""What holds only where the train function runs in the process, and on the thread, that called `fit()`."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnout
import turnout.collective
from turnout import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
    RunConfig,
    UsageError,
    ValidationConfig,
)
from turnout.testing.contract.helpers import report_folder, text_in
from turnout.testing.tracks import Track

# -- debugging


def raises_value_error() -> None:
    raise ValueError("real cause")


def test_the_tracebacks_last_frame_is_the_users_line(in_process: Track) -> None:
    with pytest.raises(ValueError, match="real cause") as caught:
        in_process.fit(raises_value_error)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("raises_value_error", 'raise ValueError("real cause")')


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_and_an_exit_leave_as_they_are_unretried(in_process: Track, kind: type[BaseException]) -> None:
    calls: list[int] = []

    def train() -> None:
        calls.append(1)
        raise kind(3)

    with pytest.raises(kind) as caught:
        in_process.fit(train, run_config=RunConfig(failure_config=FailureConfig(max_failures=3)))
    assert type(caught.value) is kind
    assert len(calls) == 1


# -- data


def test_any_object_is_handed_over_as_it_is(in_process: Track) -> None:
    data = object()
    assert in_process.fit(lambda: turnout.get_dataset_shard("train"), datasets={"train": data}).return_value is data


def test_a_callable_is_called_before_the_function_starts(in_process: Track) -> None:
    calls: list[str] = []
    in_process.fit(lambda: calls.append("train"), datasets={"train": lambda: calls.append("data")})
    assert calls == ["data", "train"]


# -- the life of a checkpoint in memory


def test_the_checkpoint_alone_outlives_the_result_and_goes_with_its_last_handle(in_process: Track) -> None:
    checkpoint = in_process.fit(lambda: report_folder({}, {"model": "kept"})).checkpoint
    gc.collect()
    assert checkpoint is not None
    assert text_in(checkpoint, "model") == "kept"
    second, third = copy.copy(checkpoint), copy.deepcopy({"c": checkpoint})["c"]
    path = checkpoint.path
    del checkpoint, second
    gc.collect()
    assert text_in(third, "model") == "kept"
    del third
    gc.collect()
    assert not os.path.exists(path)


def test_a_checkpoint_that_was_pickled_lives_until_the_process_ends(in_process: Track) -> None:
    checkpoint = in_process.fit(lambda: report_folder({}, {"model": "kept"})).checkpoint
    data = pickle.dumps(checkpoint)
    del checkpoint
    gc.collect()
    assert text_in(pickle.loads(data), "model") == "kept"


# -- what outlives the run


def test_a_thread_that_outlives_the_run_can_report_no_more(in_process: Track) -> None:
    release, errors = threading.Event(), []

    def train() -> threading.Thread:
        def late() -> None:
            release.wait()
            for _ in range(2):
                try:
                    turnout.report({"late": 1})
                except UsageError as error:
                    errors.append(str(error))

        thread = threading.Thread(target=contextvars.copy_context().run, args=(late,))
        thread.start()
        return thread

    thread = in_process.fit(train).return_value
    release.set()
    thread.join()
    assert len(errors) == 2
    assert "has ended" in errors[0]


def test_a_task_that_outlives_the_run_finds_no_session(in_process: Track) -> None:
    tasks: list[asyncio.Task[list[str]]] = []
    calls: tuple[Callable[[], object], ...] = (turnout.get_context, lambda: turnout.report({"x": 1}))

    async def later() -> list[str]:
        texts = []
        for call in calls:
            try:
                call()
            except UsageError as error:
                texts.append(str(error))
        return texts

    def train() -> None:
        tasks.append(asyncio.get_running_loop().create_task(later()))

    async def notebook() -> list[str]:
        in_process.fit(train)
        assert in_process.fit(lambda: 1).return_value == 1
        return await tasks[0]

    texts = asyncio.run(notebook())
    assert len(texts) == 2
    assert all("has ended" in text for text in texts)


# -- several runs in one process


def at_once(run: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_with_two_runs_in_one_process_a_bare_thread_is_told_to_say_which_it_belongs_to(in_process: Track) -> None:
    both = threading.Barrier(2)

    def train() -> str:
        both.wait()
        texts: list[str] = []

        def look() -> None:
            try:
                turnout.get_context()
            except UsageError as error:
                texts.append(str(error))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        both.wait()
        return texts[0]

    texts: list[str] = []
    at_once(lambda number: texts.append(in_process.fit(train).return_value))
    assert all("2 runs train in this process" in text and "copy_context" in text for text in texts)


def test_two_runs_that_report_at_the_same_time_do_not_meet(in_process: Track) -> None:
    both = threading.Barrier(2)
    results: dict[int, turnout.Result] = {}

    def train(config: dict[str, int]) -> None:
        both.wait()
        for step in range(100):
            turnout.report({**config, "step": step})
        both.wait()

    def run(number: int) -> None:
        results[number] = in_process.fit(train, train_loop_config={"run": number})

    at_once(run)
    assert {number: result.metrics for number, result in results.items()} == {
        number: {"run": number, "step": 99} for number in range(2)
    }


def test_an_upload_function_finds_its_own_run_while_another_trains_too(in_process: Track, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def put(checkpoint: Checkpoint, name: str) -> Checkpoint:
        target = turnout.get_context().get_storage().checkpoint_path(name)
        Path(target).mkdir(parents=True, exist_ok=True)
        Path(target, "step").write_text(Path(checkpoint.path, "step").read_text())
        return Checkpoint(target)

    def train(config: dict[str, int]) -> None:
        both.wait()
        arguments: dict[str, Any] = {
            "checkpoint_upload_mode": CheckpointUploadMode.ASYNC,
            "checkpoint_upload_fn": put,
        }
        report_folder({}, {"step": str(config["step"])}, **arguments)
        turnout.get_all_reported_checkpoints()
        both.wait()

    results: dict[int, turnout.Result] = {}

    def run(step: int) -> None:
        run_config = RunConfig(name=f"run-{step}", storage_path=tmp_path)
        results[step] = in_process.fit(train, train_loop_config={"step": step}, run_config=run_config)

    at_once(run)
    assert {step: text_in(result.checkpoint, "step") for step, result in results.items()} == {0: "0", 1: "1"}


# -- what must not end this process or hold it up


def test_a_signal_handler_may_report_while_a_report_is_under_way(in_process: Track) -> None:
    def train() -> int:
        handled: list[int] = []

        def handler(*_: object) -> None:
            handled.append(1)
            turnout.report({"from": "handler"})

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        try:
            while len(handled) < 20:
                turnout.report({"from": "loop"})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return len(handled)

    assert in_process.fit(train).return_value >= 20


def test_a_retry_does_not_wait_for_an_upload_that_was_given_up(
    in_process: Track, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entered, opened = threading.Event(), threading.Event()

    def hangs(checkpoint: Checkpoint, name: str) -> Checkpoint:
        entered.set()
        assert opened.wait(30)
        return checkpoint

    def train() -> str:
        if entered.is_set():
            opened.set()
            return "second"
        arguments: dict[str, Any] = {
            "checkpoint_upload_mode": CheckpointUploadMode.ASYNC,
            "checkpoint_upload_fn": hangs,
        }
        report_folder({}, {"model": "m"}, **arguments)
        entered.wait()
        raise RuntimeError("first")

    run_config = RunConfig(
        storage_path=tmp_path,
        checkpoint_config=CheckpointConfig(drain_timeout_s=0.05),
        failure_config=FailureConfig(max_failures=1),
    )
    threads = set(threading.enumerate())
    assert in_process.fit(train, run_config=run_config).return_value == "second"
    assert "hangs, and is left behind" in caplog.text
    for thread in set(threading.enumerate()) - threads:
        thread.join()


def test_a_validation_that_was_cut_off_is_made_up_for(in_process: Track, tmp_path: Path) -> None:
    def interrupted(checkpoint: Checkpoint, factor: int = 1) -> dict[str, int]:
        raise KeyboardInterrupt

    def score(checkpoint: Checkpoint, factor: int = 1) -> dict[str, int]:
        return {"score": factor * int(text_in(checkpoint, "step"))}

    def train() -> None:
        report_folder({"i": 0}, {"step": "3"}, validation=turnout.ValidationTaskConfig(fn_kwargs={"factor": 10}))

    def statuses() -> list[Any]:
        return [(each.metrics, each.status) for each in turnout.get_all_reported_checkpoints()]

    arguments: dict[str, Any] = {"run_config": RunConfig(name="run", storage_path=tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        in_process.fit(train, validation_config=ValidationConfig(interrupted), **arguments)
    result = in_process.fit(statuses, validation_config=ValidationConfig(score), **arguments)
    assert result.return_value == [({"i": 0, "score": 30}, turnout.ReportedCheckpointStatus.VALIDATED)]
