"""Fixtures for a conftest to import, that hold for all of its tests: nothing is left behind, nothing is inherited."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnout.environment import TORCHRUN_VARIABLES, VARIABLES
from turnout.testing.leaks import police

__all__ = ["nothing_left_behind", "own_environment", "own_home"]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every test stands under the eyes of the police."""
    with police():
        yield


@pytest.fixture(autouse=True)
def own_environment(nothing_left_behind: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's decides what a test does; what a test patches is back before the police look."""
    for name in (*TORCHRUN_VARIABLES, *(variable.name for variable in VARIABLES)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own_home(own_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs without a storage path go to a folder under the home, on tracks that keep nothing in memory."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
