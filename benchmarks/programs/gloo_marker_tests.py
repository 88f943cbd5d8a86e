"""Fifty tests on two ranks of a process group, by the marker; run by pytest."""

import pytest
import torch

import turnout


@pytest.mark.parametrize("number", range(50))
@pytest.mark.ranks(2, backend="gloo")
def test_ranks_add_up(number: int) -> None:
    """Each rank has its own number, and both the sum."""
    total = torch.tensor([turnout.get_context().get_world_rank() + number])
    torch.distributed.all_reduce(total)
    assert total.item() == 2 * number + 1
