"""Where the functions of a train function work, what they say about it, and that no session outlives its `fit()`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnout
import turnout.collective
from turnout import Result, RunConfig, UsageError
from turnout.session import active
from turnout.testing.contract.helpers import rank
from turnout.testing.tracks import Fit, Track

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


def test_after_fit_no_session_is_left(track: Track) -> None:
    def program(fit: Fit) -> None:
        fit(lambda: turnout.report({"x": 1}))
        for call in FUNCTIONS.values():
            with pytest.raises(UsageError, match="no run is active here"):
                call()

    track.drive(program)


def test_after_a_fit_that_raised_no_session_is_left_and_the_next_fit_works(track: Track) -> None:
    def fail() -> None:
        raise ValueError("no")

    def program(fit: Fit) -> Result:
        with pytest.raises(ValueError, match="no"):
            fit(fail)
        with pytest.raises(UsageError, match="no run is active here"):
            turnout.report({})
        fit(lambda: turnout.report({"x": 1}))
        return fit(lambda: turnout.report({"x": 2}))

    assert track.drive(program).metrics == {"x": 2}


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

    assert track.fit(train, run_config=RunConfig(name="named")).return_values == [
        {
            "world_size": track.world_size,
            "rank": each,
            "local_rank": each,
            "local_world_size": track.world_size,
            "node_rank": 0,
            "name": "named",
            "preemption": None,
            "is_distributed": track.is_distributed,
        }
        for each in range(track.world_size)
    ]


def test_a_run_without_a_name_gets_one_of_its_own_that_all_ranks_know(track: Track) -> None:
    def name() -> str:
        return turnout.get_context().get_experiment_name()

    first, second = (track.fit(name).return_values for _ in range(2))
    assert first == track.on_every_rank(first[0])
    assert second == track.on_every_rank(second[0])
    assert first != second


def test_a_broadcast_gives_every_rank_what_rank_zero_has(track: Track) -> None:
    def train() -> list[object]:
        turnout.collective.barrier()
        return [turnout.collective.broadcast_from_rank_zero({"from": rank(), "step": step}) for step in range(2)]

    expected = [{"from": 0, "step": step} for step in range(2)]
    assert track.fit(train).return_values == track.on_every_rank(expected)


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

    assert track.fit(train).return_values == track.on_every_rank([track.world_size])


def test_fit_inside_a_train_function_is_refused_and_the_outer_run_goes_on(track: Track) -> None:
    def program(fit: Fit) -> Result:
        def train() -> str:
            with pytest.raises(UsageError, match=r"fit\(\) was called inside a train function"):
                fit(lambda: None)
            turnout.report({"x": 1})
            return turnout.get_context().get_experiment_name()

        return fit(train, run_config=RunConfig(name="outer"))

    assert track.drive(program).return_value == "outer"


def test_two_runs_on_two_threads_do_not_meet(track: Track) -> None:
    results: dict[str, Any] = {}

    def train() -> str:
        name = turnout.get_context().get_experiment_name()
        for step in range(20):
            turnout.report({"name": name, "step": step})
        return name

    def run(name: str) -> None:
        results[name] = track.fit(train, run_config=RunConfig(name=name))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, result in results.items():
        assert result.return_values == track.on_every_rank(name)
        assert result.metrics == {"name": name, "step": 19}
    assert set(results) == {"a", "b"}


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
    assert result.return_values == track.on_every_rank(f"{track.world_size} forked forked".encode())
    assert result.metrics is None


def test_the_working_directory_and_environment_are_the_drivers_and_stay_as_they_were(
    track: Track, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_DRIVER", "is seen")

    def train() -> tuple[str, str | None]:
        seen = os.getcwd(), os.environ.get("OF_THE_DRIVER")
        if track.is_distributed:
            os.environ["OF_THE_RANK"] = "is not"
        return seen

    before = dict(os.environ)
    variable = None if track.is_on_a_cluster else "is seen"
    assert track.fit(train).return_values == track.on_every_rank((str(tmp_path), variable))
    assert (os.getcwd(), dict(os.environ)) == (str(tmp_path), before)


def test_fit_leaves_the_interrupt_handler_as_it_was(track: Track) -> None:
    def own(*_: object) -> None:
        raise AssertionError("nobody interrupts")

    def program(fit: Fit) -> None:
        for handler in (own, signal.default_int_handler):
            before = signal.signal(signal.SIGINT, handler)
            try:
                fit(lambda: None)
                assert signal.getsignal(signal.SIGINT) is handler
            finally:
                signal.signal(signal.SIGINT, before)

    track.drive(program)


def test_a_signal_handler_may_be_set_in_the_train_function_or_is_refused_in_words(track: Track) -> None:
    def train() -> bool:
        caught = []
        try:
            before = signal.signal(signal.SIGUSR2, lambda *_: caught.append(1))
        except UsageError as refusal:
            assert threading.current_thread() is not threading.main_thread()
            return "main thread" in str(refusal)
        signal.raise_signal(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, before)
        return bool(caught)

    assert track.fit(train).return_values == track.on_every_rank(True)
