"""Where the functions of a train function work, what they say about it, and that no session outlives its `fit()`."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import turnout
import turnout.collective
from tests.contract.tracks import Track
from turnout import RunConfig, UsageError
from turnout.session import active

FUNCTIONS: dict[str, Callable[[], Any]] = {
    "report": lambda: turnout.report({"x": 1}),
    "get_checkpoint": turnout.get_checkpoint,
    "get_context": turnout.get_context,
    "get_all_reported_checkpoints": turnout.get_all_reported_checkpoints,
    "get_dataset_shard": turnout.get_dataset_shard,
    "get_preemption_info": turnout.get_preemption_info,
    "barrier": turnout.collective.barrier,
    "broadcast_from_rank_zero": lambda: turnout.collective.broadcast_from_rank_zero(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outside_a_run_one_clear_error_says_how_to_start_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"only inside a train function.*ScalingConfig\(num_workers=0\)"):
        FUNCTIONS[name]()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_after_fit_no_session_is_left(track: Track, name: str) -> None:
    track.fit(lambda: turnout.report({"x": 1}))
    with pytest.raises(UsageError, match="no run is active here"):
        FUNCTIONS[name]()


def test_after_a_fit_that_raised_no_session_is_left_and_the_next_fit_works(track: Track) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        track.fit(fail)
    with pytest.raises(UsageError, match="no run is active here"):
        turnout.report({})
    assert track.fit(lambda: turnout.report({"x": 2})).metrics == {"x": 2}


def test_the_context_says_where_the_function_runs(track: Track) -> None:
    def train() -> dict[str, Any]:
        context = turnout.get_context()
        return {
            "world_size": context.get_world_size(),
            "rank": context.get_world_rank(),
            "local_rank": context.get_local_rank(),
            "local_world_size": context.get_local_world_size(),
            "node_rank": context.get_node_rank(),
            "name": context.get_experiment_name(),
            "preemption": turnout.get_preemption_info(),
            "is_distributed": active().is_distributed(),
        }

    assert track.fit(train, run_config=RunConfig(name="named")).return_value == {
        "world_size": track.world_size,
        "rank": 0,
        "local_rank": 0,
        "local_world_size": track.world_size,
        "node_rank": 0,
        "name": "named",
        "preemption": None,
        "is_distributed": False,
    }


def test_a_run_without_a_name_gets_one_of_its_own(track: Track) -> None:
    def name() -> str:
        return turnout.get_context().get_experiment_name()

    assert track.fit(name).return_value != track.fit(name).return_value


def test_a_run_in_memory_has_no_storage_and_says_how_to_get_one(track: Track) -> None:
    def train() -> None:
        with pytest.raises(NotImplementedError, match=r"RunConfig\(storage_path=\.\.\.\)"):
            turnout.get_context().get_storage()

    track.fit(train)


def test_one_rank_meets_itself(track: Track) -> None:
    def train() -> object:
        turnout.collective.barrier()
        return turnout.collective.broadcast_from_rank_zero({"from": "zero"})

    assert track.fit(train).return_value == {"from": "zero"}


def test_a_thread_of_the_train_function_shares_its_session(track: Track) -> None:
    def train() -> list[int]:
        seen: list[int] = []

        def look() -> None:
            seen.append(turnout.get_context().get_world_size())
            turnout.collective.barrier()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return seen

    assert track.fit(train).return_value == [track.world_size]


def test_a_thread_that_outlives_the_run_can_report_no_more() -> None:
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

    track = Track("in-process", turnout.ScalingConfig(num_workers=0), 1)
    thread = track.fit(train).return_value
    release.set()
    thread.join()
    assert len(errors) == 2
    assert "has ended" in errors[0]


def test_fit_inside_a_train_function_is_refused_and_the_outer_run_goes_on(track: Track) -> None:
    def train() -> str:
        with pytest.raises(UsageError, match="fit\\(\\) was called inside a train function"):
            track.fit(lambda: None)
        turnout.report({"x": 1})
        return turnout.get_context().get_experiment_name()

    assert track.fit(train, run_config=RunConfig(name="outer")).return_value == "outer"


def test_two_runs_on_two_threads_do_not_meet(track: Track) -> None:
    both = threading.Barrier(2)
    results: dict[str, Any] = {}

    def run(name: str) -> None:
        def train() -> str:
            both.wait()
            for step in range(100):
                turnout.report({"name": name, "step": step})
            both.wait()
            return turnout.get_context().get_experiment_name()

        results[name] = track.fit(train, run_config=RunConfig(name=name))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: result.return_value for name, result in results.items()} == {"a": "a", "b": "b"}
    assert results["a"].metrics == {"name": "a", "step": 99}


def test_with_two_runs_in_one_process_a_bare_thread_is_told_to_say_which_it_belongs_to(track: Track) -> None:
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
    threads = [threading.Thread(target=lambda: texts.append(track.fit(train).return_value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("2 runs train in this process" in text and "copy_context" in text for text in texts)


def test_a_forked_child_may_ask_but_neither_report_nor_meet(track: Track) -> None:
    def train() -> bytes:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = [str(turnout.get_context().get_world_size())]
            for call in (FUNCTIONS["report"], FUNCTIONS["barrier"]):
                try:
                    call()
                except UsageError as error:
                    said.append("forked" if "forked" in str(error) else "other")
            os.write(writer, " ".join(said).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        with open(reader, "rb") as file:
            return file.read()

    result = track.fit(train)
    assert result.return_value == f"{track.world_size} forked forked".encode()
    assert result.metrics is None


def test_the_working_directory_and_environment_are_the_drivers(track: Track) -> None:
    before = os.getcwd(), dict(os.environ)
    assert track.fit(lambda: os.getcwd()).return_value == before[0]
    assert (os.getcwd(), dict(os.environ)) == before


def test_a_task_that_outlives_the_run_finds_no_session(track: Track) -> None:
    tasks: list[asyncio.Task[list[str]]] = []

    async def later() -> list[str]:
        texts = []
        for call in (FUNCTIONS["get_context"], FUNCTIONS["report"]):
            try:
                call()
            except UsageError as error:
                texts.append(str(error))
        return texts

    def train() -> None:
        tasks.append(asyncio.get_running_loop().create_task(later()))

    async def notebook() -> list[str]:
        track.fit(train)
        assert track.fit(lambda: 1).return_value == 1
        return await tasks[0]

    texts = asyncio.run(notebook())
    assert len(texts) == 2
    assert all("has ended" in text for text in texts)


def test_a_signal_handler_may_report_while_a_report_is_under_way(track: Track) -> None:
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

    assert track.fit(train).return_value >= 20
