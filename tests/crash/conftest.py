"""The report of the crash suite, counted by its tests, checked by the last of them and printed; and an S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.lane import Lane, Tally
from tests.s3_fixtures import bucket, s3, s3_server  # noqa: F401  # pytest finds them here

_TALLY = pytest.StashKey[Tally]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Of all tests of this session."""
    return request.config.stash.setdefault(_TALLY, Tally())


@pytest.fixture
def lane(tmp_path: Path, tally: Tally) -> Lane:
    """A run that trains in SYNC mode and keeps everything."""
    return Lane(tmp_path, tally)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the report."""
    if (tally := config.stash.get(_TALLY, None)) is not None and tally.kills:
        terminalreporter.write_sep("=", "crash suite")
        terminalreporter.write_line(str(tally))
