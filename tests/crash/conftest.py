"""The report of the crash suite, counted by its tests, checked by the last of them and printed; and an S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.lane import Lane, Tally
from tests.storage.helpers import S3

_TALLY = pytest.StashKey[Tally]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Of all tests of this session."""
    return request.config.stash.setdefault(_TALLY, Tally())


@pytest.fixture
def lane(tmp_path: Path, tally: Tally) -> Lane:
    """A run that trains in SYNC mode and keeps everything."""
    return Lane(tmp_path, tally)


@pytest.fixture(scope="session", autouse=True)
def s3_server() -> Iterator[S3]:
    """Started for all, as the police would take it for a leak of the first test that asks for it."""
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An S3 server in a good mood, and the keys to it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield s3_server
    s3_server.mood()


@pytest.fixture
def bucket(s3: S3) -> str:
    """The name of an empty one."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3.make_bucket(name)
    return name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the report."""
    if (tally := config.stash.get(_TALLY, None)) is not None and tally.kills:
        terminalreporter.write_sep("=", "crash suite")
        terminalreporter.write_line(str(tally))
