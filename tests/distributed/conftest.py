"""A Ray cluster on this machine, which the tests that ask for it share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnout.testing.cluster import local_cluster


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
