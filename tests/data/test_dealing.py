"""The laws of dealing: disjoint, and complete or equal as asked, in every epoch, for any pieces and any ranks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnout.data.dealing import dealt, share_of

CASES: dict[str, Any] = {
    "sizes": st.lists(st.integers(0, 12), max_size=8),
    "world_size": st.integers(1, 7),
    "epoch": st.integers(0, 5),
    "seed": st.none() | st.integers(0, 3),
}


def rows_of(sizes: list[int], rank: int, world_size: int, equal: bool, epoch: int, seed: int | None) -> list[Any]:
    stretches = dealt(sizes, rank=rank, world_size=world_size, equal=equal, epoch=epoch, seed=seed)
    assert all(0 <= each.start < each.stop <= sizes[each.piece] for each in stretches)
    return [(each.piece, row) for each in stretches for row in range(each.start, each.stop)]


@given(**CASES)
def test_every_row_is_given_exactly_once(sizes: list[int], world_size: int, epoch: int, seed: int | None) -> None:
    shares = [rows_of(sizes, rank, world_size, False, epoch, seed) for rank in range(world_size)]
    expected = [(piece, row) for piece, size in enumerate(sizes) for row in range(size)]
    assert sorted(row for share in shares for row in share) == expected
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


@given(**CASES)
def test_all_ranks_get_the_same_number_of_rows_and_none_twice(
    sizes: list[int], world_size: int, epoch: int, seed: int | None
) -> None:
    shares = [rows_of(sizes, rank, world_size, True, epoch, seed) for rank in range(world_size)]
    assert {len(share) for share in shares} == {sum(sizes) // world_size}
    given_rows = [row for share in shares for row in share]
    assert len(set(given_rows)) == len(given_rows)


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8), world_size=st.integers(2, 7))
def test_the_remainder_is_another_one_every_epoch(sizes: list[int], world_size: int) -> None:
    rows = sum(sizes)
    remainder = rows % world_size
    if not remainder or rows < world_size:
        return
    everything = {(piece, row) for piece, size in enumerate(sizes) for row in range(size)}

    def left_out(epoch: int) -> set[Any]:
        shares = (rows_of(sizes, rank, world_size, True, epoch, None) for rank in range(world_size))
        return everything - {row for share in shares for row in share}

    assert len(left_out(0)) == remainder
    if 2 * remainder <= rows:
        assert not left_out(0) & left_out(1)


@given(**CASES, rank=st.integers(0, 6), equal=st.booleans())
def test_a_share_has_the_rows_that_it_says(
    sizes: list[int], world_size: int, epoch: int, seed: int | None, rank: int, equal: bool
) -> None:
    rank %= world_size
    start, stop = share_of(sum(sizes), rank, world_size, equal=equal)
    assert len(rows_of(sizes, rank, world_size, equal, epoch, seed)) == stop - start


def test_an_order_is_drawn_for_every_epoch_and_is_the_same_on_every_rank() -> None:
    sizes = [5] * 20
    orders = []
    for epoch in range(3):
        shares = [dealt(sizes, rank=rank, world_size=2, equal=True, epoch=epoch, seed=0) for rank in range(2)]
        orders.append([each.piece for share in shares for each in share])
        assert sorted(set(orders[-1])) == list(range(20))
    assert len({tuple(order) for order in orders}) == 3
