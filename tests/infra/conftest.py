"""No groups outlive a test, and the tests on Ray are run apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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
