"""`Plan`: which worker would get which rows and what would come back, for people, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnout.infra.collect import Collecting
from turnout.infra.dispatch import DispatchPolicy, Part

__all__ = ["Plan", "PlannedRank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRank:
    """What one worker would get.

    Args:
        rank: of it.
        data_rank: its part of the data, where rows are cut by that.
        rows: from which row to before which; None if it would get everything.
        copies: rows that it would get again.
        counts: whether its result would be in what comes back.
    """

    rank: int
    data_rank: int | None
    rows: tuple[int, int] | None
    copies: tuple[int, ...]
    counts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a call would do; its text shows it.

    Args:
        title: the method, and where it would run.
        dispatch: in words.
        collect: in words.
        ranks: one for each worker that would run.
    """

    title: str
    dispatch: str
    collect: str
    ranks: tuple[PlannedRank, ...]

    @classmethod
    def of(
        cls, label: str, group: str | None, policy: DispatchPolicy, parts: Sequence[Part], collecting: Collecting
    ) -> Plan:
        """The plan of a call that was dealt."""
        chosen = {collecting.ranks[place] for place in collecting.chosen}
        if collecting.how in ("first", "last_pp_first"):
            chosen = {min(chosen)} if chosen else set()
        ranks = tuple(
            PlannedRank(
                rank=rank,
                data_rank=collecting.mesh.get_data_rank_from_global_rank(rank) if policy.by_data_rank else None,
                rows=None if part.cut is None else (part.cut.start, part.cut.stop),
                copies=() if part.cut is None else part.cut.copies,
                counts=rank in chosen,
            )
            for rank, part in zip(collecting.ranks, parts, strict=True)
        )
        total = next((part.total for part in parts if part.total is not None), None)
        how = policy.how if isinstance(policy.how, str) else getattr(policy.how, "__name__", "a callable")
        named = "" if policy.named is None else f" of {', '.join(sorted(policy.named))}"
        rows = "" if total is None else f", {total[0]} row(s) of {total[1]}"
        kept = collecting.how if isinstance(collecting.how, str) else getattr(collecting.how, "__name__", "a callable")
        where = "in this process" if group is None else f"on group {group!r}"
        return cls(
            title=f"{label} {where}, {len(ranks)} of {collecting.mesh.world_size} worker(s), {collecting.mesh}",
            dispatch=f"{how}{named}{rows}; uneven={policy.uneven!r}",
            collect=f"{kept}{_told_of_shape(kept)}",
            ranks=ranks,
        )

    def __str__(self) -> str:
        lines = [self.title, f"  dispatch: {self.dispatch}"]
        for each in self.ranks:
            where = f"rank {each.rank}" + ("" if each.data_rank is None else f" (data rank {each.data_rank})")
            if each.rows is None:
                what = "everything"
            elif each.rows[0] == each.rows[1]:
                what = "no rows"
            else:
                what = f"rows {each.rows[0]} to {each.rows[1] - 1}"
            copies = f", and copies of row {', '.join(map(str, each.copies))}" if each.copies else ""
            counts = "" if each.counts else "; its result is left out"
            lines.append(f"    {where}: {what}{copies}{counts}")
        return "\n".join([*lines, f"  collect: {self.collect}"])


def _told_of_shape(collect: str) -> str:
    shapes = {
        "none": ": a list, in rank order",
        "flatten": ": the rows, in the order of the input",
        "mean": ": one value, weighed by rows",
        "sum": ": one value",
        "first": ": the first worker's result",
        "last_pp": ": a list, of the last pipeline stage",
        "last_pp_first": ": the first result of the last pipeline stage",
    }
    return shapes.get(collect, "")
