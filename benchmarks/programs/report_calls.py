"""Time `report({"loss": x})` in process, call by call, with logging at WARNING or as it comes.

    python report_calls.py turnout | peer | floor [--logging]

As they come, both Turnout and the peer log a line for each report.

Prints the median over 100,000 calls, less what the clock itself takes, and the mean of 100,000 more in a bare loop, in
which a cost that only some calls bear shows too. Both in nanoseconds.
"""

import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

NUM_CALLS = 100_000
LOGGING = "--logging" in sys.argv

Report = Callable[[dict[str, Any]], None]


def time_calls(report: Report) -> dict[str, float]:
    """The figures of one side."""
    losses = [1.0 / (1 + step) for step in range(NUM_CALLS)]
    clock = time.perf_counter_ns
    for loss in losses[:1000]:
        report({"loss": loss})

    of_clock, of_call = [], []
    for _ in losses:
        started = clock()
        ended = clock()
        of_clock.append(ended - started)
    for loss in losses:
        started = clock()
        report({"loss": loss})
        ended = clock()
        of_call.append(ended - started)

    started = clock()
    for loss in losses:
        report({"loss": loss})
    mean = (clock() - started) / NUM_CALLS
    return {"median_ns": statistics.median(of_call) - statistics.median(of_clock), "mean_ns": mean}


def of_turnout() -> dict[str, float]:
    """Calls of Turnout's in-process track."""
    from turnout import DataParallelTrainer, ScalingConfig, report

    figures = {}

    def train_fn() -> None:
        figures.update(time_calls(report))

    DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0)).fit()
    return figures


def of_peer() -> dict[str, float]:
    """Calls of Ray Train's local mode."""
    from ray.train import ScalingConfig, report
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    figures = {}

    def train_fn() -> None:
        if not LOGGING:  # a level of the root logger would not reach it: the peer sets INFO and a handler of its own
            logging.getLogger("ray.train").setLevel(logging.WARNING)
        figures.update(time_calls(report))

    DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0)).fit()
    return figures


class Session:
    """What the floor reports to."""

    last: dict[str, Any] | None = None


here: ContextVar[Session] = ContextVar("here")
PLAIN = frozenset({float, int, str, bool, type(None)})


def floor_report(metrics: dict[str, Any]) -> None:
    """The least that any `report` must do: find its session, check what JSON can hold, and keep a copy."""
    session = here.get()
    for key, value in metrics.items():
        if type(key) is not str or type(value) not in PLAIN:
            raise TypeError(key)
    session.last = metrics.copy()


def of_floor() -> dict[str, float]:
    """Calls of the floor."""
    here.set(Session())
    return time_calls(floor_report)


if __name__ == "__main__":
    if not LOGGING:
        logging.basicConfig(level=logging.WARNING)
    print(json.dumps({"turnout": of_turnout, "peer": of_peer, "floor": of_floor}[sys.argv[1]]()))
