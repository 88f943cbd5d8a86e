"""A Ray cluster on this machine, which the tests that ask for it share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnout.testing.cluster import local_cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The basics of the Ray track are tested beside everything else; the rest takes longer."""
    for item in items:
        if item.path.name.startswith("test_ray_"):
            item.add_marker(pytest.mark.on_ray)


@pytest.fixture(scope="session")
def _cluster() -> Iterator[None]:
    with local_cluster():
        yield


@pytest.fixture
def cluster(_cluster: None) -> Iterator[None]:
    """A cluster of one node with 4 CPUs, which the test leaves as it was."""
    from tests.distributed.on_ray import assert_clean

    yield
    assert_clean()
