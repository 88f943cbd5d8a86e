"""What single tracks have of their own; what all have in common is stated in `turnout.testing.contract`."""

from __future__ import annotations

import pytest

from turnout.testing.surroundings import own_home
from turnout.testing.tracks import IN_PROCESS, TORCHRUN, Track

__all__ = ["own_home"]


@pytest.fixture(autouse=True)
def _at_home(own_home: None) -> None:
    """Every test here has a home of its own."""


@pytest.fixture
def in_process() -> Track:
    """For what can only be seen where the train function runs in the test's own process."""
    return IN_PROCESS


@pytest.fixture
def torchrun(_turnout_modules_by_value: None) -> Track:
    """For what is so where every rank runs the driver program."""
    return TORCHRUN
