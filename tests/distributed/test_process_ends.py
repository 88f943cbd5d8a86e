"""Ends by force: of the driver, of the server, of many runs in a row; nothing is left, and the next run works."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path

import psutil
import pytest

import turnout
from tests.distributed.ranks import failure_of, fit, program, wait_until
from tests.distributed.within import rank
from turnout import FailureConfig
from turnout.collective import barrier
from turnout.controllers.process import client
from turnout.testing import police
from turnout.testing.leaks import LeakError

WITH_CHILDREN = """
    import multiprocessing, os, subprocess, time
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig
    from turnout.collective import barrier

    def train():
        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & sleep 1000"])
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
        multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,)).start()
        barrier()
        time.sleep(1)
        print("all have begun", flush=True)
        while True:
            time.sleep(1)

    def fit():
        DataParallelTrainer(
            train, scaling_config=ScalingConfig(2, controller="process"), run_config=RunConfig(storage_path=".")
        ).fit()
"""


def test_a_driver_that_is_killed_leaves_no_rank_and_no_child_of_one(tmp_path: Path) -> None:
    with program(tmp_path, WITH_CHILDREN + "\n    fit()\n") as driver:
        driver.wait_for("[rank 1] all have begun")
        driver.wait_for("[rank 0] all have begun")
        assert len(driver.alive()) >= 1 + 1 + 2 * (1 + 6)
        driver.process.kill()
        wait_until(lambda: not driver.alive(), "all processes to end", 2)


def test_a_server_that_is_killed_fails_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    end = """
    import signal, sys, threading
    import psutil
    from turnout.controllers.process import client

    def kill_the_server():
        sys.stdin.readline()
        psutil.Process().children()[0].kill()

    threading.Thread(target=kill_the_server).start()
    try:
        fit()
    except Exception as error:
        print("ERROR", type(error).__name__, error)
    print("children:", psutil.Process().children(recursive=True), flush=True)
    train = lambda: 7
    print("next:", DataParallelTrainer(
        train, scaling_config=ScalingConfig(2, controller="process"), run_config=RunConfig(storage_path=".")
    ).fit().return_values, flush=True)
    sys.stdin.readline()
    """
    with program(tmp_path, WITH_CHILDREN + end, stdin=subprocess.PIPE) as driver:
        driver.wait_for("[rank 1] all have begun")
        driver.wait_for("[rank 0] all have begun")
        assert driver.process.stdin is not None
        driver.process.stdin.write("\n")
        driver.process.stdin.flush()
        driver.wait_for("next: [7, 7]")
        assert "ERROR WorkerGroupError rank 0 died with the server that forks ranks (pid " in driver.text
        assert "), which was killed by SIGKILL" in driver.text
        assert "children: []" in driver.text
        names = [" ".join(each.cmdline()) for each in driver.alive()]
        assert len(names) == 2, names
        driver.process.stdin.write("\n")
        driver.process.stdin.flush()
        assert driver.wait() == 0
        assert not driver.alive()


def test_a_server_that_was_killed_while_it_was_idle_is_replaced(tmp_path: Path) -> None:
    fit(rank, tmp_path)
    for server in client._idle:
        os.kill(server.pid, signal.SIGKILL)
    assert fit(rank, tmp_path).return_values == [0, 1]


def test_a_server_that_dies_in_a_run_counts_as_a_failure_that_is_retried(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def train() -> str:
        barrier()
        if rank() == 0 and not mark.exists():
            mark.touch()
            os.kill(os.getppid(), signal.SIGKILL)
        barrier()
        return "well"

    result = fit(train, tmp_path / "runs", failure_config=FailureConfig(max_failures=1))
    assert result.return_values == ["well", "well"]


def test_two_fits_at_once_do_not_meet(tmp_path: Path) -> None:
    def train(config: dict[str, int]) -> int:
        total = 0
        for _ in range(20):
            turnout.report({"number": config["number"]})
            total += config["number"]
        return total

    results = {}
    threads = [
        threading.Thread(
            target=lambda number=number: results.update({number: fit(train, tmp_path, config={"number": number})})
        )
        for number in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: result.return_values for number, result in results.items()} == {
        number: [20 * number] * 2 for number in (1, 2, 3)
    }


def test_a_driver_may_fork_before_while_and_after_it_trains(tmp_path: Path) -> None:
    class Forks(turnout.UserCallback):
        def after_report(self, run_context: object, metrics: object, checkpoint: object) -> None:
            _fork()

    def train() -> int:
        turnout.report({"step": 0})
        turnout.report({"step": 1})
        return rank()

    fit(train, tmp_path)
    _fork()
    assert fit(train, tmp_path, callbacks=[Forks()]).return_values == [0, 1]
    assert fit(train, tmp_path).return_values == [0, 1]


def _fork() -> None:
    """A copy of this process that ends as programs do, with what they have registered for their end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads
        pid = os.fork()
    if pid == 0:
        client.close_idle_servers()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_twenty_runs_in_a_row_leave_no_descriptor_thread_process_or_memory(tmp_path: Path) -> None:
    def train() -> int:
        turnout.report({"step": 0})
        return rank()

    def fails() -> None:
        raise ValueError("on purpose")

    client.close_idle_servers()
    fit(train, tmp_path)
    failure_of(fails, tmp_path)
    (server,) = [each for each in client._idle if each.is_usable]
    driver, warm = psutil.Process(), psutil.Process(server.pid)
    before = (driver.num_fds(), threading.active_count(), len(driver.children(recursive=True)), warm.num_fds())
    memory = warm.memory_info().rss
    for _ in range(10):
        fit(train, tmp_path)
        failure_of(fails, tmp_path)
    after = (driver.num_fds(), threading.active_count(), len(driver.children(recursive=True)), warm.num_fds())
    assert after == before
    assert warm.memory_info().rss - memory < 1 << 20


def test_a_rank_that_outlives_a_test_is_found_by_the_police(tmp_path: Path) -> None:
    def train() -> None:
        (tmp_path / f"begun-{rank()}").touch()
        while not (tmp_path / "over").exists():
            time.sleep(0.01)

    run = threading.Thread(target=lambda: fit(train, tmp_path / "runs"))

    def leave_ranks() -> None:
        with police():
            run.start()
            wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "both ranks to begin")

    try:
        with pytest.raises(LeakError, match=r"processes: left [^\n]+\nfrom turnout.controllers.process.server"):
            leave_ranks()
    finally:
        (tmp_path / "over").touch()
        run.join()
