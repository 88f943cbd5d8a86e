"""P3S: a metrics-only `report` in a run with storage, and the history that comes of a million of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.disk import fresh_folder, room
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of

__all__ = ["BENCHMARK"]

_MOST_US = 10.0
_MOST_READING_S = 10.0
_SIZES = {"100,000": 100_000, "1,000,000": 1_000_000}


def _measure(settings: Settings) -> Outcome:
    with room() as place:
        figures = interleave(
            {
                f"{side} {count}": partial(_run, place, side, number)
                for count, number in _SIZES.items()
                for side in ("turnout", "floor")
            },
            rounds=settings.rounds(5),
            warm_ups=0,  # each program warms itself up
        )

    def calls(side: str, name: str, role: Role, figure: str) -> Series:
        return Series(name=name, role=role, unit="us", runs=[each[figure] / 1e3 for each in figures[side]])

    def seconds(name: str, figure: str) -> Series:
        runs = [each[figure] for each in figures["turnout 1,000,000"]]
        return Series(name=name, role=Role.TURNOUT, unit="s", runs=runs)

    judged, floors, comparisons = [], [], []
    for count in _SIZES:
        mean = calls(f"turnout {count}", f"mean of {count}, with what is written meanwhile", Role.TURNOUT, "mean_ns")
        floor = calls(f"floor {count}", f"a line of JSON into a buffered file, mean of {count}", Role.FLOOR, "mean_ns")
        judged += [calls(f"turnout {count}", f"median of {count} reports", Role.TURNOUT, "median_ns"), mean]
        floors.append(floor)
        comparisons.append(ratios(f"Turnout over floor, means of {count}", mean, floor))
    sealing = seconds("sealing 1,000,000: from the loop's end to that of `fit()`", "seal_s")
    reading = seconds("reading 1,000,000: `Result.from_path(...).metrics_dataframe`", "read_s")
    return Outcome(
        series=[*judged, sealing, reading, *floors, *comparisons],
        checks=[*(Check.at_most(each, _MOST_US) for each in judged), Check.at_most(reading, _MOST_READING_S)],
    )


def _run(place: Path, side: str, num_reports: int) -> dict[str, float]:
    with fresh_folder(place) as folder:
        figures: dict[str, float] = answer_of(
            OWN_PYTHON, PROGRAMS / "stored_reports.py", side, folder, str(num_reports)
        )
        return figures


BENCHMARK = Benchmark(
    id="P3S",
    title='In-process `report({"loss": x})` in a run with storage, logging at WARNING; its history of 1,000,000',
    target="at most 10 us of the loop's time; a million is read back within 10 s",
    measure=_measure,
)
