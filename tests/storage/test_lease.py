"""One driver at a time: who is refused, who is replaced, and what a jumping clock does not do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from turnout.errors import StorageError, UsageError
from turnout.process_identity import ProcessIdentity
from turnout.storage.lease import Lease
from turnout.storage.run_folder import RunFolder

HOLD = """
import sys
from turnout.storage.lease import Lease
from turnout.storage.location import StorageLocation
from turnout.storage.run_folder import RunFolder
lease = Lease(RunFolder(StorageLocation.open(sys.argv[1]), "run"), duration_s=float(sys.argv[2]))
lease.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_driver(run: RunFolder, duration_s: float = 30) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, run.location.parent.path, str(duration_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def changed_lease(run: RunFolder, **changes: Any) -> None:
    place = run.location / "lease.json"
    data = place.read()
    assert data is not None
    place.put(json.dumps({**json.loads(data), **changes}).encode())


def test_the_lease_is_taken_renewed_and_given_back(run: RunFolder) -> None:
    lease = Lease(run)
    lease.acquire()
    first = lease.holder()
    assert first is not None
    assert (first.pid, first.process) == (os.getpid(), ProcessIdentity.current())
    lease.renew()
    second = lease.holder()
    assert second is not None
    assert second.token == first.token
    assert second.renewed_monotonic > first.renewed_monotonic
    lease.release()
    lease.release()
    assert lease.holder() is None
    Lease(run).acquire()


def test_a_second_driver_is_refused_with_host_pid_and_since(local_run: RunFolder) -> None:
    with another_driver(local_run) as process:
        begin = time.monotonic()
        with pytest.raises(UsageError, match=rf"host .+, pid {process.pid}, since \d{{4}}-") as caught:
            Lease(local_run).acquire()
        assert time.monotonic() - begin < 5
        assert "run 'run'" in str(caught.value)


def test_a_holder_whose_process_is_gone_is_replaced_at_once(local_run: RunFolder) -> None:
    with another_driver(local_run) as process:
        process.kill()
        process.wait()
        begin = time.monotonic()
        Lease(local_run).acquire()
        assert time.monotonic() - begin < 5


def test_a_holder_that_is_killed_but_not_yet_reaped_is_gone(local_run: RunFolder) -> None:
    with another_driver(local_run) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        Lease(local_run).acquire(wait=False)


def test_a_process_number_that_was_used_again_is_another_process(local_run: RunFolder) -> None:
    Lease(local_run).acquire()
    changed_lease(local_run, started=1)
    Lease(local_run).acquire(wait=False)


def test_a_stopped_holder_is_replaced_once_its_lease_has_run_out_and_learns_of_it(local_run: RunFolder) -> None:
    told: list[str] = []
    with another_driver(local_run, duration_s=1) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        lease = Lease(local_run)
        lease.acquire(on_wait=told.append)
        assert len(told) <= 1
        holder = lease.holder()
        assert holder is not None
        assert holder.pid == os.getpid()


def test_a_holder_on_another_host_is_waited_for_until_its_lease_has_run_out(run: RunFolder) -> None:
    Lease(run, duration_s=0.5).acquire()
    changed_lease(run, host="elsewhere boot pid:[1]", pid=7)
    told: list[str] = []
    begin = time.monotonic()
    Lease(run).acquire(on_wait=told.append)
    assert 0.4 < time.monotonic() - begin < 10
    assert len(told) == 1
    assert "host elsewhere, pid 7, since" in told[0]


def test_a_holder_on_another_host_that_renews_is_alive(local_run: RunFolder) -> None:
    Lease(local_run, duration_s=2).acquire()
    changed_lease(local_run, host="elsewhere boot pid:[1]")

    def renewed(message: str) -> None:
        changed_lease(local_run, renewed=time.time() + 1)

    with pytest.raises(UsageError, match="host elsewhere"):
        Lease(local_run).acquire(on_wait=renewed)


def test_a_holder_on_another_host_is_refused_at_once_if_asked_not_to_wait(local_run: RunFolder) -> None:
    Lease(local_run).acquire()
    changed_lease(local_run, host="elsewhere boot pid:[1]")
    with pytest.raises(UsageError, match="host elsewhere"):
        Lease(local_run).acquire(wait=False)


def test_a_lease_of_another_host_from_long_ago_is_replaced_at_once(local_run: RunFolder) -> None:
    Lease(local_run).acquire()
    changed_lease(local_run, host="elsewhere boot pid:[1]", renewed=time.time() - 1000)
    Lease(local_run).acquire(wait=False)


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps_hands_the_lease_to_nobody_else_on_this_host(
    local_run: RunFolder, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    with another_driver(local_run):
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        with pytest.raises(UsageError):
            Lease(local_run).acquire()
        monkeypatch.undo()


def test_of_many_that_find_a_dead_holder_one_takes_over(local_run: RunFolder) -> None:
    Lease(local_run).acquire()
    changed_lease(local_run, started=1)

    def acquire(_: int) -> bool:
        try:
            Lease(local_run).acquire(wait=False)
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(acquire, range(8))) == 1


def test_of_many_that_find_nobody_one_takes_the_lease(local_run: RunFolder) -> None:
    def acquire(_: int) -> bool:
        try:
            Lease(local_run).acquire(wait=False)
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(acquire, range(8))) == 1


def test_a_damaged_lease_is_nobodys(run: RunFolder) -> None:
    (run.location / "lease.json").put(b'{"host": "x", "pi')
    Lease(run).acquire(wait=False)


def test_a_lost_lease_is_told_once_and_names_who_has_it(local_run: RunFolder) -> None:
    lease = Lease(local_run, duration_s=0.3)
    lease.acquire()
    lost = threading.Event()
    errors: list[StorageError] = []

    def on_lost(error: StorageError) -> None:
        errors.append(error)
        lost.set()

    with lease.kept(on_lost=on_lost):
        changed_lease(local_run, token="another's", pid=99)
        assert lost.wait(20)
    assert len(errors) == 1
    assert "pid 99" in str(errors[0])
    lease.release()
    assert lease.holder() is not None


def test_a_kept_lease_is_renewed_and_its_thread_ends_with_the_block(local_run: RunFolder) -> None:
    lease = Lease(local_run, duration_s=0.3)
    lease.acquire()
    first = lease.holder()
    renewed = threading.Event()

    def look() -> None:
        if lease.holder() != first:
            renewed.set()

    with lease.kept(on_lost=lambda error: None, meanwhile=look):
        assert renewed.wait(20)
    assert not [thread for thread in threading.enumerate() if thread.name == "turnout-lease"]
