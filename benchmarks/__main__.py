"""Run the benchmarks: all, or those that are named; `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks import peer
from benchmarks.harness import Benchmark, Outcome, Settings
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.publish import record_of, write_record, write_table
from benchmarks.table import BENCHMARKS

_RESULTS = Path(__file__).resolve().parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show and write; returns 1 if a target is missed or a benchmark fails."""
    known = {benchmark.id: benchmark for benchmark in BENCHMARKS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="what to run, such as P1 P3; all if none is named")
    parser.add_argument("--list", action="store_true", help="list the benchmarks with their targets, and run none")
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that they work; writes no results")
    parser.add_argument("--output", type=Path, help="where results are written; benchmarks/results if not given")
    options = parser.parse_args(arguments)
    chosen = [name.upper() for name in options.ids] or list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    if options.list:
        for name in chosen:
            print(f"{name:4} {known[name].title}\n     target: {known[name].target}")
        return 0

    settings = Settings(quick=options.quick)
    folder: Path | None = options.output or (None if options.quick else _RESULTS)
    peer.python()  # its building, if need be, comes before everything that is timed
    machine, versions = describe_machine(), describe_versions()
    all_met = True
    for name in chosen:
        benchmark = known[name]
        print(f"{name} {benchmark.title} ", end="", file=sys.stderr, flush=True)
        try:
            outcome = benchmark.measure(settings)
        except Exception:
            print(f"\n{name} failed, and the others go on:\n{traceback.format_exc()}", file=sys.stderr)
            all_met = False
            continue
        _show(benchmark, outcome)
        all_met = all_met and outcome.met
        if folder is not None:
            write_record(record_of(benchmark, outcome, machine, versions), folder)
            write_table(folder)
    return 0 if all_met else 1


def _show(benchmark: Benchmark, outcome: Outcome) -> None:
    print(f"{benchmark.id} {benchmark.title}")
    for each in outcome.series:
        spread = f"({each.least:.4g} to {each.greatest:.4g}, {len(each.runs)} runs)"
        print(f"    {each.role.value:10} {each.name:52} {each.median:>9.4g} {each.unit:2} {spread}")
    for check in outcome.checks:
        print(f"    {'met   ' if check.met else 'MISSED'}     {check.text}: {check.measured}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
