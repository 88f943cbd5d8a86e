"""P15: an Arrow shard's `iter_torch_batches`, against pyarrow's own scan, Ray Data and torch's DataLoader.

All read what is in the page cache. An epoch is timed from asking for it to its last batch, with the opening of the
files. The peer's second epoch is the one that is compared: its first starts the workers too. torch's DataLoader has its
rows in memory already.
"""

from __future__ import annotations

from functools import partial

from benchmarks import peer
from benchmarks.disk import room
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of

__all__ = ["BENCHMARK"]


def _measure(settings: Settings) -> Outcome:
    program = PROGRAMS / "arrow_batches.py"
    with room() as place:
        answer_of(OWN_PYTHON, program, "write", place)
        rates = interleave(
            {
                "own": partial(answer_of, OWN_PYTHON, program, "own", place),
                "peer": partial(peer.answer_of, program, "peer", place),
            },
            rounds=settings.rounds(5),
            warm_ups=0,  # each program warms itself up
        )

    def series(side: str, figure: str, name: str, role: Role) -> Series:
        return Series(name=name, role=role, unit="M rows/s", runs=[each[figure] for each in rates[side]])

    tensors = series("own", "tensors", "`iter_torch_batches`", Role.TURNOUT)
    stacked = series("own", "stacked", "the same, stacked to one (B, 10) tensor", Role.TURNOUT)
    first = series("peer", "first", "Ray Data `iter_torch_batches`, first epoch", Role.PEER)
    second = series("peer", "second", "Ray Data `iter_torch_batches`, second epoch", Role.PEER)
    loader = series("own", "loader", "torch's DataLoader over tensors in memory", Role.PEER)
    scan = series("own", "scan", "pyarrow's scan to numpy", Role.FLOOR)
    reader = series("own", "reader", "pyarrow's Parquet file, read in such batches", Role.FLOOR)
    over_scan = ratios("Turnout over the scan", tensors, scan)
    stacked_over_scan = ratios("Turnout, stacked, over the scan", stacked, scan)
    over_ray = ratios("Turnout over Ray Data's second epoch", tensors, second)
    over_loader = ratios("Turnout over torch's DataLoader", tensors, loader)
    over_reader = ratios("Turnout over the Parquet file", tensors, reader)
    comparisons = [over_scan, stacked_over_scan, over_reader, over_ray, over_loader]
    return Outcome(
        series=[tensors, stacked, first, second, loader, scan, reader, *comparisons],
        checks=[Check.at_least(over_scan, 0.95), Check.at_least(stacked_over_scan, 0.6), Check.at_least(over_ray, 5)],
    )


BENCHMARK = Benchmark(
    id="P15",
    title="Arrow shard `iter_torch_batches` (Parquet, 10 float columns, 5,000,000 rows, batches of 8,192)",
    target="at least 0.95 of pyarrow's scan (0.6 when stacked to one tensor); at least 5 times Ray Data",
    measure=_measure,
)
