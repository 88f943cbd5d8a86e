"""Fixtures of all tests: the police, and a clean environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnout.environment import TORCHRUN_VARIABLES, VARIABLES
from turnout.testing import police


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with police():
        yield


@pytest.fixture(autouse=True)
def _own_environment(_nothing_left_behind: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's decides what a test does; what a test patches is back before the police look."""
    for name in (*TORCHRUN_VARIABLES, *(variable.name for variable in VARIABLES)):
        monkeypatch.delenv(name, raising=False)
