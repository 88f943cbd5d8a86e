"""Ctrl-C on the process track: once to stop at the next report, on all ranks alike; twice to kill now."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.distributed.ranks import Program, program, wait_until

DRIVER = """
    import ctypes, os, signal, sys, tempfile, time, threading
    import turnout
    from turnout import Checkpoint, CheckpointUploadMode, DataParallelTrainer, RunConfig, ScalingConfig
    from turnout.collective import barrier

    rank = lambda: turnout.get_context().get_world_rank()

    def begin():
        barrier()
        print("begun", os.getpid(), flush=True)

    def fit(train):
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)
        try:
            DataParallelTrainer(
                train,
                scaling_config=ScalingConfig(2, controller="process"),
                run_config=RunConfig(name="run", storage_path="."),
            ).fit()
        except BaseException as error:
            print("LEFT", type(error).__name__, flush=True)
        print("handlers are back:", (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)) == before)
        print("threads:", [each.name for each in threading.enumerate()])
        print("over", flush=True)
"""


def ranks_of(driver: Program) -> list[int]:
    """The processes of both ranks, once they have begun."""
    driver.wait_for("[rank 0] begun")
    driver.wait_for("[rank 1] begun")
    return [int(line.split()[-1]) for line in driver.text.splitlines() if "] begun " in line]


def interrupt(driver: Program) -> None:
    driver.process.send_signal(signal.SIGINT)


def leaves_well(driver: Program) -> None:
    assert driver.wait() == 0, driver.text
    assert "LEFT KeyboardInterrupt" in driver.text
    assert "handlers are back: True" in driver.text
    assert "threads: ['MainThread']" in driver.text
    assert not driver.alive()


def test_one_interrupt_stops_all_ranks_at_the_same_report_and_drains_uploads(tmp_path: Path) -> None:
    source = """
    def train():
        step = 0
        begin()
        try:
            while True:
                time.sleep(0.02 * rank())
                with tempfile.TemporaryDirectory() as folder:
                    open(f"{folder}/{rank()}", "w").write(str(step))
                    mode = CheckpointUploadMode.ASYNC
                    turnout.report({"step": step}, Checkpoint.from_directory(folder), checkpoint_upload_mode=mode)
                step += 1
        except KeyboardInterrupt:
            print("stopped at", step, flush=True)
            raise

    fit(train)
    """
    with program(tmp_path, DRIVER + source) as driver:
        ranks_of(driver)
        time.sleep(0.2)  # some reports
        interrupt(driver)
        leaves_well(driver)
    stops = {line.partition("stopped at ")[2] for line in driver.text.splitlines() if "stopped at" in line}
    assert len(stops) == 1
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert newest.name == f"checkpoint_{int(stops.pop()) - 1:06d}"
    assert (newest / "0").read_text() == (newest / "1").read_text() == str(int(newest.name[-6:]))


def test_one_interrupt_stops_a_single_rank_at_its_next_report(tmp_path: Path) -> None:
    source = """
    def train():
        step = 0
        begin()
        while True:
            turnout.report({"step": step})
            step += 1

    fit(train)
    """
    with program(tmp_path, DRIVER.replace("ScalingConfig(2,", "ScalingConfig(1,") + source) as driver:
        driver.wait_for("[rank 0] begun")
        interrupt(driver)
        leaves_well(driver)


def test_one_interrupt_lets_a_function_that_never_reports_end_by_itself(tmp_path: Path) -> None:
    source = """
    def train():
        begin()
        while not os.path.exists("told"):
            time.sleep(0.01)
        print("ended by itself", flush=True)

    fit(train)
    """
    with program(tmp_path, DRIVER + source) as driver:
        ranks_of(driver)
        interrupt(driver)
        driver.wait_for("interrupt again to kill it now")
        (tmp_path / "told").touch()
        leaves_well(driver)
    assert driver.text.count("ended by itself") == 2


@pytest.mark.parametrize(
    "stays",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); begin(); time.sleep(1000)",
        "begin(); sum(range(10**12))",
        "begin(); os.kill(os.getpid(), signal.SIGSTOP)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)); begin(); time.sleep(1000)",
    ],
)
def test_a_second_interrupt_kills_whatever_ranks_do_within_a_second(stays: str, tmp_path: Path) -> None:
    with program(tmp_path, DRIVER + f"\n    def train():\n        {stays}\n\n    fit(train)\n") as driver:
        ranks = ranks_of(driver)
        interrupt(driver)
        driver.wait_for("interrupt again to kill it now")
        started = time.monotonic()
        interrupt(driver)
        driver.wait_for("over")
        assert time.monotonic() - started < 1
        leaves_well(driver)
        assert not any(psutil.pid_exists(rank) for rank in ranks)


def test_an_interrupt_before_the_ranks_have_begun_leaves_fit_too(tmp_path: Path) -> None:
    source = """
    from turnout.controllers.process import client

    class Server(client.Server):
        def __init__(self, preload):
            print("starting", flush=True)
            super().__init__(preload)

    client.Server = Server
    fit(begin)
    """
    with program(tmp_path, DRIVER + source) as driver:
        driver.wait_for("starting")
        interrupt(driver)
        assert driver.wait() == 0, driver.text
        assert "LEFT KeyboardInterrupt" in driver.text
        wait_until(lambda: not driver.alive(), "the server to see that nobody needs it", 4)
        assert "Traceback" not in driver.text


def test_an_interrupt_from_the_terminal_reaches_the_driver_alone(tmp_path: Path) -> None:
    source = """
    def train():
        begin()
        while True:
            turnout.report({"at": time.time()})
            time.sleep(0.01)

    fit(train)
    """
    with program(tmp_path, DRIVER + source, start_new_session=True) as driver:
        ranks = ranks_of(driver)
        group = os.getpgid(driver.process.pid)
        assert all(os.getpgid(rank) != group for rank in ranks)
        os.killpg(group, signal.SIGINT)
        leaves_well(driver)


def test_handlers_of_the_users_stay_in_force_while_ranks_train(tmp_path: Path) -> None:
    source = """
    def note(number, frame):
        print("the user's handler:", signal.Signals(number).name, flush=True)

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGUSR1, note)

    def train():
        begin()
        while not os.path.exists("told"):
            time.sleep(0.01)

    fit(train)
    """
    with program(tmp_path, DRIVER + source) as driver:
        ranks_of(driver)
        interrupt(driver)
        driver.wait_for("the user's handler: SIGINT")
        driver.process.send_signal(signal.SIGUSR1)
        driver.wait_for("the user's handler: SIGUSR1")
        (tmp_path / "told").touch()
        assert driver.wait() == 0, driver.text
    assert "LEFT" not in driver.text
    assert "handlers are back: True" in driver.text


def test_a_fit_on_another_thread_leaves_the_interrupt_to_the_main_thread(tmp_path: Path) -> None:
    source = """
    def train():
        begin()
        while not os.path.exists("told"):
            time.sleep(0.01)

    run = threading.Thread(target=fit, args=(train,))
    run.start()
    try:
        run.join()
    except KeyboardInterrupt:
        print("the main thread is interrupted", flush=True)
    open("told", "w").close()
    run.join()
    """
    with program(tmp_path, DRIVER + source) as driver:
        ranks_of(driver)
        interrupt(driver)
        driver.wait_for("the main thread is interrupted")
        assert driver.wait() == 0, driver.text
    assert "LEFT" not in driver.text
