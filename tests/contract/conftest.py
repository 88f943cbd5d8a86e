"""What single tracks have of their own; what all have in common is stated in `turnout.testing.contract`."""

from __future__ import annotations

import pytest

from turnout.testing.tracks import IN_PROCESS, TORCHRUN, Track


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs without a storage path go to a folder under the home, on tracks that keep nothing in memory."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def in_process() -> Track:
    """For what can only be seen where the train function runs in the test's own process."""
    return IN_PROCESS


@pytest.fixture
def torchrun(_turnout_modules_by_value: None) -> Track:
    """For what is so where every rank runs the driver program."""
    return TORCHRUN
