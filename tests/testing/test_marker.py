"""The marker ``ranks``, as a user's test session sees it: a session of its own runs a file of tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_CONFTEST = """
import pytest

class FromConftest:
    def __init__(self, text):
        self.text = text

@pytest.fixture
def from_conftest():
    return FromConftest("told")

@pytest.fixture
def variable(monkeypatch):
    monkeypatch.setenv("A_VARIABLE", "set by a fixture")
"""

_TESTS = """
import asyncio
import os
import signal
import threading
import unittest
import warnings

import pytest

import turnout
import turnout.collective
from turnout.testing import Fault, per_rank


def rank():
    return turnout.get_context().get_world_rank()


def one_more(number):
    return number + 1


@pytest.fixture
def opened(tmp_path):
    def make():
        with open(tmp_path / f"of-{rank()}", "w") as file:
            yield file
        print("closed", file.closed)

    return per_rank(make)


@pytest.fixture
def lock():
    return threading.Lock()


@pytest.mark.ranks(2)
def test_passes(tmp_path, opened, from_conftest, variable):
    assert opened.name.endswith(f"of-{rank()}")
    turnout.collective.barrier()
    assert len(list(tmp_path.iterdir())) == 2
    assert from_conftest.text == "told"
    assert os.environ["A_VARIABLE"] == "set by a fixture"
    assert one_more(rank()) == rank() + 1


@pytest.mark.ranks(2)
def test_own_failures():
    print("output of", rank())
    found = {"rank": rank()}
    assert found == {"rank": 2}


@pytest.mark.ranks(2)
def test_cause_first():
    if rank() == 1:
        raise ValueError("the real cause")
    turnout.collective.barrier()


@pytest.mark.ranks(2, timeout_s=1.5)
def test_hangs():
    if rank() == 1:
        threading.Event().wait()


@pytest.mark.ranks(2)
def test_after_hang():
    turnout.collective.barrier()


@pytest.mark.ranks(2)
def test_killed():
    if rank() == 1:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    turnout.collective.barrier()


@pytest.mark.ranks(2)
def test_after_killed():
    turnout.collective.barrier()


@pytest.mark.ranks(2)
def test_leaves():
    if rank() == 1:
        os._exit(7)


@pytest.mark.ranks(2)
def test_skips():
    pytest.skip("nothing to try")


@pytest.mark.ranks(2)
def test_xfails():
    pytest.xfail("known")


@pytest.mark.xfail(raises=ValueError, strict=True)
@pytest.mark.ranks(2)
def test_xfails_by_mark():
    raise ValueError("as expected")


@pytest.mark.ranks(2, backend="gloo")
def test_gloo():
    import torch

    number = torch.tensor([rank() + 1])
    torch.distributed.all_reduce(number)
    assert number.item() == 3


@pytest.mark.ranks(2, faults=[Fault(point="report", rank=1, on_hit=2, action="raise", message="at step 1")])
def test_fault():
    for step in range(3):
        turnout.report({"step": step})


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.ranks(3)
class TestClass:
    def test_method(self, number):
        assert turnout.get_context().get_world_size() == 3
        assert number in (1, 2)


@pytest.mark.ranks(2)
def test_monkeypatch(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: rank())
    assert os.getpid() == rank()


@pytest.mark.filterwarnings("error")
@pytest.mark.ranks(2)
def test_warnings():
    warnings.warn("an error here")


@pytest.mark.ranks(2)
def test_bound(capsys):
    pass


@pytest.mark.ranks(2)
def test_unpicklable(lock):
    pass


@pytest.mark.ranks(0)
def test_no_ranks():
    pass


@pytest.mark.ranks
def test_no_number():
    pass


@pytest.mark.ranks(2, timeout=3)
def test_unknown_argument():
    pass


@pytest.mark.ranks(2, backend="carrier pigeon")
def test_unknown_backend():
    pass


@pytest.mark.ranks(2)
async def test_coroutine():
    await asyncio.sleep(0)


class TestOfUnittest(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_method(self):
        pass
"""


class _Session:
    """What a session has printed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (folder / "conftest.py").write_text(_CONFTEST)
        (folder / "test_users.py").write_text(_TESTS)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments, "test_users.py"]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=100)
        self.text = done.stdout + done.stderr
        words = re.findall(r"^([A-Z]+) test_users\.py::(\S+)", self.text, re.MULTILINE)
        self.outcomes = {name: word for word, name in words}

    def told_of(self, test: str) -> str:
        """What is told of one test."""
        title = rf"^_+ (?:ERROR at setup of )?{re.escape(test)} _+$"
        next_title = r"^_+ (?:ERROR at setup of )?[\w.]+(?:\[\d\])? _+$|^=+ "
        found = re.search(rf"{title}(.*?)(?={next_title})", self.text, re.MULTILINE | re.DOTALL)
        assert found is not None, f"nothing is told of {test} in:\n{self.text}"
        return found[1]


@pytest.fixture(scope="module", params=["0", "2"], ids=["alone", "xdist"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Session:
    return _Session(tmp_path_factory.mktemp("session"), "-n", request.param)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "test",
    [
        "test_passes",
        "test_gloo",
        "TestClass::test_method[1]",
        "TestClass::test_method[2]",
        "test_monkeypatch",
        "test_after_hang",
        "test_after_killed",
    ],
)
def test_a_body_that_passes_on_every_rank_passes(session: _Session, test: str) -> None:
    assert session.outcomes[test] == "PASSED", session.text


def test_each_rank_shows_its_own_failure_with_the_values_of_the_assertion(session: _Session) -> None:
    told = session.told_of("test_own_failures")

    for rank in (0, 1):
        assert f" rank {rank} of 2 _" in told
        assert f"assert {{'rank': {rank}}} == {{'rank': 2}}" in told
        assert f"[rank {rank}] output of {rank}" in told
    assert "test_users.py:" in told
    assert "turnout/" not in told  # frames of Turnout's own are of no use to the user


def test_the_cause_comes_before_what_came_of_it(session: _Session) -> None:
    told = session.told_of("test_cause_first")

    assert told.index("ValueError: the real cause") < told.index("rank 0 of 2, after that and maybe because of it")
    assert "FAILED test_users.py::test_cause_first - rank 1: ValueError: the real cause" in session.text


def test_a_rank_that_hangs_is_named_with_its_stack(session: _Session) -> None:
    told = session.told_of("test_hangs")

    assert "rank 1 had not ended within ranks(timeout_s=1.5), and was killed" in told
    assert re.search(r"test_users\.py:\d+ in test_hangs", told)
    assert "rank 0 of 2" not in told


def test_a_rank_that_is_killed_is_named_with_its_signal(session: _Session) -> None:
    told = session.told_of("test_killed")

    assert "rank 1 was killed by SIGKILL" in told
    assert "last words" in told


def test_a_rank_that_leaves_the_program_is_named_with_its_status(session: _Session) -> None:
    assert "rank 1 exited with status 7" in session.told_of("test_leaves")


def test_skipping_and_expected_failures_mean_what_they_always_do(session: _Session) -> None:
    assert re.search(r"SKIPPED \[1\] test_users\.py:\d+: nothing to try", session.text)
    assert session.outcomes["test_xfails"] == "XFAIL"
    assert session.outcomes["test_xfails_by_mark"] == "XFAIL"


def test_a_fault_strikes_the_rank_and_the_step_that_it_names(session: _Session) -> None:
    told = session.told_of("test_fault")

    assert "InjectedError: at step 1" in told
    assert "rank 0 of 2" not in told


def test_the_warning_filters_of_a_test_hold_on_its_ranks(session: _Session) -> None:
    assert "UserWarning: an error here" in session.told_of("test_warnings")


def test_a_process_group_that_cannot_be_set_up_says_why(session: _Session) -> None:
    told = session.told_of("test_unknown_backend")

    assert "could not enter the test's body" in told
    assert "this torch does not know 'carrier pigeon'" in told


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("test_bound", "the fixture 'capsys' belongs to pytest's own process"),
        ("test_unpicklable", "the value of the fixture 'lock', a _thread.lock, cannot be sent to worker processes"),
        ("test_no_ranks", "ranks(world_size)=0"),
        ("test_no_number", "missing 1 required keyword-only argument: 'world_size'"),
        ("test_unknown_argument", "unexpected keyword argument 'timeout'"),
        ("test_coroutine", "takes no coroutine"),
        ("TestOfUnittest.test_method", "use a plain class"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(session: _Session, test: str, text: str) -> None:
    told = session.told_of(test)

    assert text in told
    assert len([line for line in told.strip().splitlines() if not line.startswith("[gw")]) == 1, told
