"""Every test of the contract is run over every track, or over those that have what it speaks of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from turnout.testing.cluster import local_cluster
from turnout.testing.ranks import warm_server
from turnout.testing.surroundings import nothing_left_behind, own_environment, own_home
from turnout.testing.tracks import RAY, TRACKS, Track, track_of

__all__ = ["nothing_left_behind", "own_environment", "own_home"]

# Which tracks a test runs over, by the name of the fixture that it asks for.
_CHOSEN: dict[str, Callable[[Track], bool]] = {
    "track": lambda track: True,
    "retrying_track": lambda track: track.retries,
    "memory_track": lambda track: track.keeps_in_memory,
    "group_track": lambda track: track.world_size > 1,
    "isolating_track": lambda track: track.world_size > 1 and track.retries and not track.keeps_in_memory,
}
# What ranks of the contract import beside what they would anyway: so it is not read again for every rank.
_PRELOADED = (
    "pandas",
    "psutil",
    "pyarrow.fs",
    "pyarrow.parquet",
    "torch",
    "turnout.runtime.stored",
)


def _tracks(config: pytest.Config) -> Sequence[Track]:
    name = config.getoption("turnout_controller")
    return TRACKS if name is None else (track_of(name),)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test the tracks that it runs over."""
    tracks = _tracks(metafunc.config)
    for fixture, has_it in _CHOSEN.items():
        if fixture in metafunc.fixturenames:
            chosen = [
                pytest.param(track, id=track.name, marks=[pytest.mark.on_ray] * (track is RAY))
                for track in tracks
                if has_it(track)
            ]
            metafunc.parametrize(fixture, chosen, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster is there before the police look for the first time."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        is_of_here = item.path.parent == Path(__file__).parent  # others have clusters of their own
        if is_of_here and isinstance(item, pytest.Function) and any(each is RAY for each in parameters):
            item.fixturenames = ["_session_cluster", *item.fixturenames]  # of this item alone


@pytest.fixture
def track(request: pytest.FixtureRequest, _turnout_modules_by_value: None) -> Track:
    """The track that a behaviour is tried on."""
    chosen: Track = request.param
    return chosen


retrying_track = memory_track = group_track = isolating_track = track


@pytest.fixture(autouse=True)
def _at_home(own_home: None) -> None:
    """Every test here has a home of its own."""


@pytest.fixture(scope="session", autouse=True)
def _warm_server(pytestconfig: pytest.Config) -> None:
    warm_server(pytestconfig).start(_PRELOADED)


@pytest.fixture(scope="session")
def _session_cluster() -> Iterator[None]:
    with local_cluster():
        yield
