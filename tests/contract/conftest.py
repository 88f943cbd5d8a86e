"""Every test of the contract is run over every track."""

from __future__ import annotations

import pytest

from tests.contract.tracks import TRACKS, Track


@pytest.fixture(params=TRACKS, ids=lambda track: track.name)
def track(request: pytest.FixtureRequest) -> Track:
    chosen: Track = request.param
    return chosen
