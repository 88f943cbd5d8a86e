"""Every test of the contract is run over every track, or over those that have what it speaks of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest

from tests.contract.tracks import IN_PROCESS, TRACKS, Track
from turnout.controllers.process.client import lent_server

# What ranks of the tests import, as train functions and, under torchrun, as driver programs: the server has it already,
# so that it is not read again for every rank.
_PRELOADED = (
    "torch",
    "torch.distributed",
    "pandas",
    "psutil",
    "pyarrow.fs",
    "pyarrow.parquet",
    "pytest",
    "tests.contract.tracks",
    "turnout.controllers.local_torch",
    "turnout.runtime.stored",
    "turnout.torch",
)


def _over(has_it: Callable[[Track], bool]) -> Any:  # Any: pytest's fixtures have no public type
    tracks = [track for track in TRACKS if has_it(track)]

    @pytest.fixture(params=tracks, ids=[track.name for track in tracks])
    def chosen(request: pytest.FixtureRequest) -> Track:
        track: Track = request.param
        return track

    return chosen


track = _over(lambda track: True)
retrying_track = _over(lambda track: track.retries)
memory_track = _over(lambda track: track.keeps_in_memory)
group_track = _over(lambda track: track.world_size > 1)


@pytest.fixture
def in_process() -> Track:
    """For what can only be seen where the train function runs in the test's own process."""
    return IN_PROCESS


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs without a storage path go to a folder under the home, on tracks that keep nothing in memory."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session", autouse=True)
def _warm_server() -> None:
    with lent_server(_PRELOADED):
        pass


@pytest.fixture(scope="module", autouse=True)
def _module_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test defines travels to its ranks by value, so that they need not import the test's module."""
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)
