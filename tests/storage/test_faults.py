"""The fault injector itself: what is armed strikes where, when and whom it should, and nothing else costs anything."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import timeit

import pytest

from turnout.errors import UsageError
from turnout.failpoints import failpoint, failpoint_data
from turnout.testing.faults import (
    TURNOUT_FAULTS,
    Fault,
    InjectedError,
    arm_from_environment,
    armed,
    environment,
)


def test_a_point_that_is_not_armed_costs_next_to_nothing() -> None:
    per_call = min(timeit.repeat(lambda: failpoint("x"), number=20_000, repeat=5)) / 20_000
    assert per_call < 2e-6  # about 50 ns on an idle machine


def test_a_fault_strikes_at_its_hit_as_often_as_told_and_its_rank_alone() -> None:
    struck = []
    with armed(Fault(point="a.*", action="raise", on_hit=2, times=2, rank=1)) as counted:
        for rank in (0, 1, 1, 0, 1, 1):
            try:
                failpoint("a.b", rank)
            except InjectedError:
                struck.append(len(counted.hits))
        failpoint("b", 1)
    assert struck == [3, 5]
    failpoint("a.b", 1)


def test_what_was_armed_before_is_armed_again_after() -> None:
    with armed(Fault(point="x", action="raise", times=0)):
        with armed():
            failpoint("x")
        with pytest.raises(InjectedError):
            failpoint("x")


def test_data_is_cut_short_and_a_full_disk_is_one() -> None:
    with armed(Fault(point="write", action="short_write"), Fault(point="full", action="enospc")):
        failpoint("write")
        assert failpoint_data("write", b"12345678") == b"1234"
        assert failpoint_data("write", b"12345678") == b"12345678"
        with pytest.raises(OSError, match="No space") as caught:
            failpoint("full")
    assert caught.value.errno == errno.ENOSPC


def test_a_fault_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Fault\.action='explode'"):
        Fault(point="x", action="explode")
    with pytest.raises(UsageError, match=r"Fault\.on_hit=0"):
        Fault(point="x", action="kill", on_hit=0)


@pytest.mark.parametrize(("action", "status"), [("kill", -signal.SIGKILL), ("exit", 1), ("raise", 1)])
def test_a_subprocess_arms_itself_from_its_environment(
    action: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = environment(Fault(point="x", action=action, on_hit=2))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    script = (
        "from turnout.testing.faults import arm_from_environment\n"
        "from turnout.failpoints import failpoint\n"
        "failpoint('x'); failpoint('x'); arm_from_environment(); failpoint('x'); print('once', flush=True)\n"
        "failpoint('x'); print('twice', flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=50)
    assert done.stdout == "once\n"
    assert done.returncode == status


def test_nothing_is_armed_where_the_environment_says_nothing() -> None:
    assert arm_from_environment({}) is None
    assert arm_from_environment({TURNOUT_FAULTS: " "}) is None
