"""Two drivers and one run: who is refused, who is replaced, and what one that was replaced can do no more."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lane import Lane, Tally, read_notes, wait_until
from tests.storage.helpers import started
from turnout import StorageError
from turnout.storage.lease import Lease
from turnout.storage.location import StorageLocation
from turnout.testing.faults import Fault

REFUSAL = r"UsageError: run 'run' \(.+\) is driven by another process: host \S+, pid {pid}, since \d{{4}}-\d\d-\d\d "


@contextlib.contextmanager
def driving(lane: Lane, *faults: Fault, **plan: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that drives the run; it has reported by now."""
    with lane.start(*faults, **plan) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reported\n", lane.output
        yield process


def test_a_second_driver_is_refused_with_host_pid_and_since_and_the_first_goes_on(lane: Lane) -> None:
    with driving(lane) as first:
        before = lane.told().returned
        begin = time.monotonic()
        assert lane.live(num_steps=2) == 1
        assert time.monotonic() - begin < 5
        assert re.match(REFUSAL.format(pid=first.pid), lane.told().errors[-1]), lane.told().errors
        assert first.poll() is None
        assert lane.told().returned > before
        lane.kill(first, "of one of two drivers")
    assert len(lane.told().entered) == 1
    lane.audit()


def test_a_driver_that_was_killed_is_replaced_at_once(lane: Lane) -> None:
    with driving(lane) as first:
        lane.kill(first, "of one of two drivers")
    newest = lane.audit().newest
    begin = time.monotonic()
    with driving(lane) as second:
        assert time.monotonic() - begin < 5
        assert f"taking over from a driver that is gone: host {os.uname().nodename}, pid {first.pid}" in lane.output
        assert "waiting" not in lane.output
        lane.kill(second, "of one of two drivers")
    assert lane.told().entered[-1] == newest
    lane.audit()


def test_of_two_drivers_that_start_at_once_one_drives(tmp_path: Path, tally: Tally) -> None:
    lane = Lane(tmp_path, tally)
    for _ in range(8):
        num_entered = len(lane.told().entered)
        with contextlib.ExitStack() as stack:
            both = [stack.enter_context(lane.start()) for _ in range(2)]
            refused, driver = sorted(both, key=lambda each: wait_for_refusal(lane, each, both))
            assert refused.poll() == 1
            assert re.match(REFUSAL.format(pid=driver.pid), lane.told().errors[-1]), lane.told().errors
            assert driver.stdout is not None
            assert driver.stdout.readline() == "reported\n"
            lane.kill(driver, "of one of two drivers")
        assert len(lane.told().entered) == num_entered + 1
        lane.audit()


def wait_for_refusal(lane: Lane, each: subprocess.Popen[str], both: Sequence[subprocess.Popen[str]]) -> bool:
    """Whether it is the one that goes on; the other has ended by then."""
    deadline = time.monotonic() + 20
    while all(process.poll() is None for process in both):
        assert time.monotonic() < deadline, "neither was refused"
        time.sleep(0.002)
    return each.poll() is None


STOPS = {
    "commit.before_scan": 4,
    "upload.file": 14,
    "commit.after_upload": 4,
    "commit.before_record": 4,
    "record.before": 4,
    "record.write": 4,
    "record.after": 4,
    "commit.after_record": 4,
    "commit.after_release": 4,
    "retention.before": 2,
}


@pytest.mark.parametrize("point", STOPS)
@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_a_driver_that_is_stopped_replaced_and_continued_commits_and_removes_nothing_and_says_why(
    tmp_path: Path, tally: Tally, point: str, mode: str
) -> None:
    lane = Lane(tmp_path, tally)
    own = str(tmp_path / "first-notes")
    plan = {"lease_s": 0.5, "notes": own, "mode": mode, "num_to_keep": 2 if point.startswith("retention") else None}
    stop = Fault(point=point, action="stop", on_hit=STOPS[point])
    with lane.start(stop, **plan) as first:
        state = os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert state is not None
        assert state.si_code == os.CLD_STOPPED, lane.output
        promised = read_notes(own)
        with driving(lane) as second:
            assert "taking over from a driver that is gone" in lane.output
            entered_from = lane.told().entered[-1]
            assert entered_from >= promised.returned
            names = checkpoints(lane)
            first.send_signal(signal.SIGCONT)
            assert first.wait(20) == 1
            after = read_notes(own)
            assert names <= checkpoints(lane), f"removed {names - checkpoints(lane)}"
            assert second.poll() is None
            lane.kill(second, "of one of two drivers")
    assert after.returned <= entered_from, "a report returned whose checkpoint the second driver never saw"
    assert re.search(r"has been superseded by attempt 1|the lease was lost.*driven by host", after.errors[-1]), after
    told = {*after.begun} - {*range(entered_from + 1)}
    assert not told or after.taken <= entered_from or mode == "ASYNC"
    add_notes(lane, after.begun, after.returned)
    if plan["num_to_keep"] is None:
        lane.audit()


@pytest.mark.parametrize("on_hit", [1, 2])
def test_a_driver_that_is_stopped_while_it_renews_its_lease_holds_up_nobody_and_ends_without_harm(
    tmp_path: Path, tally: Tally, on_hit: int
) -> None:
    lane = Lane(tmp_path, tally, lease_s=1.0)
    own = str(tmp_path / "first-notes")
    with lane.start(Fault(point="lease.before_renewal", action="stop", on_hit=on_hit), notes=own) as first:
        state = os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert state is not None
        assert state.si_code == os.CLD_STOPPED, lane.output
        with driving(lane) as second:
            assert "holds the lock" in lane.output
            first.send_signal(signal.SIGCONT)
            assert first.wait(20) == 1
            returned = lane.told().returned
            lease = json.loads((lane.path / "lease.json").read_text())
            wait_until(lambda: renewed_by(lane, second.pid) > lease["renewed_monotonic"], "the second's renewal")
            wait_until(lambda: lane.told().returned > returned, "the second to go on")
            lane.kill(second, "of one of two drivers")
    after = read_notes(own)
    assert re.search(r"has been superseded by attempt 1|the lease was lost", after.errors[-1]), after
    add_notes(lane, after.begun, after.returned)
    lane.audit()


def test_a_lease_that_ran_out_and_was_given_back_by_another_is_lost(tmp_path: Path) -> None:
    run = started(StorageLocation.open(tmp_path / "storage"))
    lease = Lease(run, duration_s=0.0)
    lease.acquire()
    other = Lease(run)
    other.acquire()
    other.release()
    with pytest.raises(StorageError, match="the lease was lost"):
        lease.renew()
    assert lease.holder() is None


def renewed_by(lane: Lane, pid: int) -> float:
    lease = json.loads((lane.path / "lease.json").read_text())
    return float(lease["renewed_monotonic"]) if lease["pid"] == pid else 0.0


def checkpoints(lane: Lane) -> set[str]:
    return set(lane.run.folder_names())


def add_notes(lane: Lane, begun: set[int], returned: int) -> None:
    """Make the audit hold the run to what its first driver was promised too."""
    with open(lane.plan.notes, "a", encoding="utf-8") as file:
        file.writelines(f"begun {step}\n" for step in begun)
        file.write(f"returned {returned}\n" if returned >= 0 else "")
