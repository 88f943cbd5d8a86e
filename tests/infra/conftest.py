"""A Ray cluster that the tests of groups on Ray share, and no groups that outlive a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnout.testing.cluster import local_cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Ray take longer, and are run apart."""
    for item in items:
        if item.path.parent.name == "infra" and item.path.name.startswith("test_ray_"):
            item.add_marker(pytest.mark.on_ray)


@pytest.fixture(autouse=True)
def _shut_down(nothing_left_behind: None, own_environment: None) -> Iterator[None]:
    """Each test begins and ends without groups."""
    import turnout.infra as infra

    yield
    infra.shutdown()


@pytest.fixture(scope="session")
def _cluster() -> Iterator[None]:
    with local_cluster(num_cpus=8):
        yield


@pytest.fixture
def cluster(_cluster: None, _turnout_modules_by_value: None) -> Iterator[None]:
    """A cluster of one node with 8 CPUs, which the test leaves as it was; what its module defines travels by value."""
    import turnout.infra as infra
    from tests.distributed.on_ray import groups_alive, is_free
    from tests.distributed.ranks import wait_until

    yield
    infra.shutdown()
    assert not groups_alive()
    wait_until(is_free, "what the groups had to be free", 5)
