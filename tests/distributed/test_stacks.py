"""Where ranks are, for people: the merged report on SIGUSR1, and how a dump of one rank is read."""

from __future__ import annotations

import faulthandler
import functools
import signal
import sys
import tempfile
import threading
from pathlib import Path

from tests.distributed.ranks import Program, program, wait_until
from turnout.controllers.stacks import Place, merged, where_of

DRIVER = """
    import ctypes, os, signal, sys, time
    import turnout
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig
    from turnout.collective import barrier

    def fit(train, **scaling):
        DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(controller="process", **scaling),
            run_config=RunConfig(storage_path="."),
        ).fit()
"""


def test_sigusr1_shows_what_every_rank_does_and_tells_the_stopped_from_the_busy(tmp_path: Path) -> None:
    source = """
    def busy():
        sum(range(10**12))

    def holds_the_lock():
        for _ in range(1000):
            ctypes.PyDLL(None).usleep(10**6)

    def train():
        rank = turnout.get_context().get_world_rank()
        barrier()
        print("begun", flush=True)
        if rank == 0:
            busy()
        elif rank == 1:
            holds_the_lock()
        elif rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            barrier()

    fit(train, num_workers=5)
    """
    with program(tmp_path, DRIVER + source) as driver:
        for rank in range(5):
            driver.wait_for(f"[rank {rank}] begun")
        for number in (1, 2):  # it can be asked again
            driver.process.send_signal(signal.SIGUSR1)
            script = tmp_path / "driver.py"
            lines = script.read_text().splitlines()
            busy, usleep, waits = (
                1 + next(number for number, line in enumerate(lines) if text in line)
                for text in ("sum(range", "usleep(", "        barrier()")
            )
            driver.wait_for(
                f"SIGUSR1: rank 0 is in busy ({script}:{busy}) | rank 1 is in holds_the_lock ({script}:{usleep}) | "
                f"rank 2 does not answer (is it stopped?) | ranks 3,4 wait in barrier #2 ({script}:{waits})"
            )
            wait_until(functools.partial(_has_answered, driver, number), "the answer")
            assert f"  rank 0:\n    {script}:{busy} in busy\n    {script}:" in driver.text
            assert "turnout/controllers" not in driver.text


def _has_answered(driver: Program, number: int) -> bool:
    return driver.text.count("SIGUSR1") == number


def test_a_rank_in_a_library_is_shown_with_the_users_line(tmp_path: Path) -> None:
    source = """
    import queue

    def next_batch():
        return queue.Queue().get()

    def train():
        print("begun", flush=True)
        next_batch()

    fit(train, num_workers=1)
    """
    with program(tmp_path, DRIVER + source) as driver:
        driver.wait_for("[rank 0] begun")
        driver.process.send_signal(signal.SIGUSR1)
        script = tmp_path / "driver.py"
        number = 1 + next(n for n, line in enumerate(script.read_text().splitlines()) if "Queue().get" in line)
        driver.wait_for(f"({script}:{number})")
        assert f"SIGUSR1: rank 0 is in wait ({script}:{number})" in driver.text
        assert "threading.py" in driver.text


def test_a_rank_answers_after_a_library_has_put_back_all_signal_handlers(tmp_path: Path) -> None:
    """Lightning does so after each fit; what Python knows of the signal by which a rank is asked must not be death."""
    source = """
    import queue

    def train():
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        for number, handler in handlers.items():
            if handler is not None and number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, handler)
        print("begun", flush=True)
        queue.Queue().get()

    fit(train, num_workers=1)
    """
    with program(tmp_path, DRIVER + source) as driver:
        driver.wait_for("[rank 0] begun")
        script = tmp_path / "driver.py"
        line = 1 + next(n for n, line in enumerate(script.read_text().splitlines()) if "Queue().get" in line)
        for number in (1, 2):
            driver.process.send_signal(signal.SIGUSR1)
            wait_until(functools.partial(_has_answered, driver, number), "the answer")
        assert driver.text.count(f"SIGUSR1: rank 0 is in wait ({script}:{line})") == 2, driver.text


def test_the_users_line_is_found_beneath_a_torch_data_loader() -> None:
    torch = next(path for path in sys.path if path.endswith("site-packages"))
    dump = f"""Thread 0x00007f0000000001 (most recent call first):
  File "{torch}/torch/utils/data/_utils/pin_memory.py", line 32 in _loop

Current thread 0x00007f0000000002 (most recent call first):
  File "{threading.__file__}", line 320 in wait
  File "{torch}/torch/utils/data/dataloader.py", line 1133 in _try_get_data
  File "{torch}/torch/utils/data/dataloader.py", line 630 in __next__
  File "/home/user/train.py", line 61 in epoch
  File "/home/user/train.py", line 80 in train
  File "<string>", line 1 in <module>
"""
    place = where_of(dump)
    assert place.what == "is in wait (/home/user/train.py:61)"
    assert place.line == "/home/user/train.py:61"
    assert place.stack.splitlines()[-1] == "    /home/user/train.py:80 in train"
    assert "pin_memory" not in place.stack


def test_ranks_at_the_same_place_are_told_together() -> None:
    same = Place("is in step (train.py:3)", "train.py:3", "    train.py:3 in step")
    text = merged({0: Place("waits in barrier #7 (train.py:88)"), 1: same, 3: same, 2: Place("has ended")})
    assert text == (
        "rank 0 waits in barrier #7 (train.py:88) | ranks 1,3 are in step (train.py:3) | rank 2 has ended\n"
        "  ranks 1,3:\n    train.py:3 in step"
    )
    assert merged({0: Place("does not answer"), 1: Place("does not answer")}) == "ranks 0,1 do not answer"


def test_nothing_is_read_from_no_dump_or_a_cut_one() -> None:
    assert where_of("").what == "does not answer (is it stopped?)"
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        dump = file.read().decode()
    whole = where_of(dump)
    assert whole.line.startswith(__file__)
    for end in range(0, len(dump), 7):
        where_of(dump[:end])


def test_a_program_that_is_not_training_keeps_what_sigusr1_means(tmp_path: Path) -> None:
    source = """
    fit(lambda: None, num_workers=1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    fit(lambda: None, num_workers=1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    """
    with program(tmp_path, DRIVER + source) as driver:
        assert driver.wait() == 0, driver.text
