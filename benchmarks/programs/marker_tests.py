"""Fifty tests on two ranks, by the marker; run by pytest."""

import pytest

import turnout
import turnout.collective


@pytest.mark.parametrize("number", range(50))
@pytest.mark.ranks(2)
def test_ranks_meet(number: int) -> None:
    """Every rank hears what the first one says."""
    assert turnout.collective.broadcast_from_rank_zero(number) == number
    assert turnout.get_context().get_world_size() == 2
