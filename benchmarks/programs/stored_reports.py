"""Time metrics-only reports, their sealing and reading them back, in a stored run; or the least that stores them.

    python stored_reports.py turnout | floor FOLDER NUM_REPORTS

Logging is at WARNING: a line of text for each report is not what is measured.

Prints the median of a call, less what the clock itself takes, and the mean of the loop with all that happens meanwhile:
lines are written behind the loop's back, by a thread that shares the interpreter with it. What is still to be written
when the loop ends is part of the sealing. Calls are in nanoseconds, the others in seconds.
"""

import itertools
import json
import logging
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

Report = Callable[[dict[str, Any]], None]


def time_calls(report: Report, num_reports: int) -> dict[str, float]:
    """The figures of a loop of reports; what the clock takes is taken off both."""
    clock = time.perf_counter_ns
    for loss in (1.0, 0.5):
        report({"loss": loss})

    def durations(call: Report) -> list[int]:
        at = array("q", [clock()])
        for step in range(num_reports):
            call({"loss": 1.0 / (1 + step)})
            at.append(clock())
        return [after - before for before, after in itertools.pairwise(at)]

    of_nothing, of_call = durations(lambda metrics: None), durations(report)
    return {
        "median_ns": statistics.median(of_call) - statistics.median(of_nothing),
        "mean_ns": statistics.mean(of_call) - statistics.mean(of_nothing),
    }


def of_turnout(folder: str, num_reports: int) -> dict[str, float]:
    """A run in process, with storage."""
    from turnout import DataParallelTrainer, Result, RunConfig, ScalingConfig, report

    figures = {}

    def train_fn() -> None:
        figures.update(time_calls(report, num_reports))
        figures["ended"] = time.perf_counter()

    run_config = RunConfig(name="run", storage_path=folder)
    DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0), run_config=run_config).fit()
    figures["seal_s"] = time.perf_counter() - figures.pop("ended")

    started = time.perf_counter()
    frame = Result.from_path(f"{folder}/run").metrics_dataframe
    figures["read_s"] = time.perf_counter() - started
    assert len(frame) == num_reports + 2, len(frame)
    return figures


def of_floor(folder: str, num_reports: int) -> dict[str, float]:
    """A line of JSON for each report into a buffered file, in the loop."""
    with open(Path(folder) / "metrics.jsonl", "w", encoding="utf-8") as file:

        def report(metrics: dict[str, Any]) -> None:
            file.write(json.dumps(metrics) + "\n")

        return time_calls(report, num_reports)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    print(json.dumps({"turnout": of_turnout, "floor": of_floor}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
