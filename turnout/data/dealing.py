"""How the rows of a data set are dealt to ranks: a pure function of their number, the epoch and who asks.

The pieces of a data set (row groups, files, or a table) stand in a row, in the files' order or in one that is drawn for
the epoch. Each rank gets one stretch of that row, so that it reads few files besides its own. With ``equal`` every rank
gets exactly ``rows // world_size`` rows; the remainder is left out, and the row is turned by that much with every
epoch, so that it is another remainder each time. Without it every row is given exactly once.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Stretch", "dealt", "share_of"]


class Stretch(NamedTuple):
    """Rows of one piece, one after another.

    Args:
        piece: its index.
        start: the first row, from the piece's own first.
        stop: the row after the last.
    """

    piece: int
    start: int
    stop: int


def share_of(num_rows: int, rank: int, world_size: int, *, equal: bool) -> tuple[int, int]:
    """The first row of a rank's stretch and the one after its last, of a row of pieces as it is turned."""
    if equal:
        size = num_rows // world_size
        return rank * size, (rank + 1) * size
    return num_rows * rank // world_size, num_rows * (rank + 1) // world_size


def dealt(
    sizes: Sequence[int],
    *,
    rank: int,
    world_size: int,
    equal: bool,
    epoch: int,
    seed: int | None,
) -> list[Stretch]:
    """What one rank reads in one epoch, in order.

    Args:
        sizes: the number of rows of each piece.
        rank: who asks.
        world_size: how many ranks there are.
        equal: whether all get the same number of rows.
        epoch: from 0.
        seed: draws the order of the pieces with the epoch; None leaves them in theirs.

    Returns:
        Stretches of at least one row.
    """
    order = list(range(len(sizes)))
    if seed is not None:
        random.Random(f"{seed} {epoch}").shuffle(order)
    num_rows = sum(sizes)
    start, stop = share_of(num_rows, rank, world_size, equal=equal)
    remainder = num_rows % world_size if equal else 0
    turn = epoch * remainder % num_rows if num_rows else 0
    stretches: list[Stretch] = []
    for first, last in _turned(start + turn, stop + turn, num_rows):
        stretches += _within(sizes, order, first, last)
    return stretches


def _turned(start: int, stop: int, num_rows: int) -> list[tuple[int, int]]:
    """A stretch of the turned row as stretches of the row as it stands: two if it goes over the end."""
    if start >= num_rows:
        return [(start - num_rows, stop - num_rows)]
    if stop > num_rows:
        return [(start, num_rows), (0, stop - num_rows)]
    return [(start, stop)]


def _within(sizes: Sequence[int], order: Sequence[int], start: int, stop: int) -> list[Stretch]:
    if start >= stop:
        return []
    ends = list(accumulate(sizes[piece] for piece in order))
    stretches = []
    index = bisect_right(ends, start)
    while start < stop:
        piece, first = order[index], ends[index] - sizes[order[index]]
        if (last := min(stop, ends[index])) > start:
            stretches.append(Stretch(piece, start - first, last - first))
        start = max(start, ends[index])
        index += 1
    return stretches
