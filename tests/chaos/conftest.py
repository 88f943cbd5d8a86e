"""The report of the chaos suite, counted by its tests and printed at its end."""

from __future__ import annotations

from collections import Counter

import pytest

_TALLY = pytest.StashKey[Counter[str]]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Counter[str]:
    """What all tests of this session have done and found, by name."""
    return request.config.stash.setdefault(_TALLY, Counter())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the report."""
    if (tally := config.stash.get(_TALLY, None)) is not None:
        terminalreporter.write_sep("=", "chaos suite")
        terminalreporter.write_line(", ".join(f"{name}: {count}" for name, count in tally.items()))
