"""Start ranks on Ray, let them report, and kill one: Turnout's and Ray Train's, each on a cluster of its own.

    python -m benchmarks.programs.ray_ranks turnout|peer start NUM_RANKS NUM_ROUNDS
    python -m benchmarks.programs.ray_ranks turnout|peer small NUM_RANKS NUM_REPORTS
    python -m benchmarks.programs.ray_ranks turnout|peer recover NUM_RANKS NUM_ROUNDS
    python -m benchmarks.programs.ray_ranks turnout lines NUM_RANKS NUM_LINES

Prints JSON: of ``start`` the milliseconds from the call of `fit()` until the last rank is in the train function, with
torch and gloo, and until `fit()` has returned; of ``small`` the former without torch and with 0.01 CPU a rank, once,
and the reports a second, of metrics alone; of ``recover`` the milliseconds from the SIGKILL of a rank, after a
checkpoint, until all are in the train function again; of all three, of Turnout's, also ``floor_ms``, what bare actors
take to start on the same cluster in between; of ``lines`` rank 0's reports a second while the last rank prints that
many lines between its own, and while it writes them to a file instead. The cluster has seen the same with two ranks
before. Times are of one clock, as all ranks are on this machine.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.own_cluster import median_of_rounds, own_cluster

SMALL = {"CPU": 0.01}
LINES_A_REPORT = 20
PEER_LOOKS_S = 3.0  # it knows of a checkpoint once it has looked, every 2 s; one that it does not know of is lost

Fit = Callable[..., None]


# -- the two sides: how each fits a function, and what that calls


def fit_turnout(train_fn: Any, num_ranks: int, place: str, *, small: bool = False, max_failures: int = 0) -> None:
    """Train on Turnout's actors."""
    from turnout import DataParallelTrainer, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from turnout.torch import TorchTrainer

    run_config = RunConfig(
        storage_path=f"{place}/storage",
        failure_config=FailureConfig(max_failures=max_failures),
        logging_config=LoggingConfig("ERROR"),
    )
    scaling = ScalingConfig(num_workers=num_ranks, controller="ray", resources_per_worker=SMALL if small else None)
    trainer = DataParallelTrainer if small else TorchTrainer
    trainer(train_fn, scaling_config=scaling, run_config=run_config).fit()


def fit_peer(train_fn: Any, num_ranks: int, place: str, *, small: bool = False, max_failures: int = 0) -> None:
    """Train on Ray Train's."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    run_config = RunConfig(storage_path=f"{place}/storage", failure_config=FailureConfig(max_failures=max_failures))
    scaling = ScalingConfig(num_workers=num_ranks, resources_per_worker=SMALL if small else None)
    trainer = DataParallelTrainer if small else TorchTrainer
    trainer(train_fn, scaling_config=scaling, run_config=run_config).fit()


def train_api(side: str) -> Any:  # Any: either module
    """What a train function imports; the two have it by the same names."""
    return importlib.import_module({"turnout": "turnout", "peer": "ray.train"}[side])


# -- what is measured


def start(side: str, fit: Fit, num_ranks: int, *, small: bool = False, num_reports: int = 0) -> dict[str, float]:
    """One `fit()` of a function that says when it was entered, and how fast it could report if it is to."""
    with tempfile.TemporaryDirectory() as place:

        def train() -> None:
            entered = time.time()
            api = train_api(side)
            rank = api.get_context().get_world_rank()
            Path(place, str(rank)).write_text(repr(entered))
            if num_reports == 0:
                return
            started = 0.0
            for step in range(-(num_reports // 10) - 1, num_reports):
                if step == 0:
                    started = time.perf_counter()
                api.report({"loss": 1.0 / (1 + abs(step))})
            rate = num_reports / (time.perf_counter() - started)
            if rank == 0:
                Path(place, "rate").write_text(repr(rate))

        started = time.time()
        fit(train, num_ranks, place, small=small)
        ended = time.time()
        entered = max(float(Path(place, str(rank)).read_text()) for rank in range(num_ranks))
        figures = {"entered_ms": (entered - started) * 1e3, "whole_ms": (ended - started) * 1e3}
        if num_reports > 0:
            figures["per_s"] = float(Path(place, "rate").read_text())
    return figures


def recover(side: str, fit: Fit, num_ranks: int) -> dict[str, float]:
    """One `fit()` whose rank 1 is killed once a checkpoint is committed."""
    with tempfile.TemporaryDirectory() as place:

        def train() -> None:
            entered = time.time()
            api = train_api(side)
            rank = api.get_context().get_world_rank()
            if Path(place, "killed").exists():
                assert side != "turnout" or api.get_checkpoint() is not None
                Path(place, str(rank)).write_text(repr(entered))
                return
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model").write_text("weights")
                api.report({"step": 0}, checkpoint=api.Checkpoint.from_directory(folder))
            if side == "peer":
                time.sleep(PEER_LOOKS_S)
            if rank == 1:
                Path(place, "killed").write_text(repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            while True:  # as training goes on; the other rank's next report never comes
                api.report({"step": 1})

        fit(train, num_ranks, place, max_failures=1)
        entered = max(float(Path(place, str(rank)).read_text()) for rank in range(num_ranks))
        return {"again_ms": (entered - float(Path(place, "killed").read_text())) * 1e3}


def lines(fit: Fit, num_ranks: int, num_lines: int, *, printed: bool) -> float:
    """Rank 0's reports a second in one `fit()` whose last rank writes lines between its own."""
    with tempfile.TemporaryDirectory() as place:

        def train() -> None:
            api = train_api("turnout")
            rank = api.get_context().get_world_rank()
            with open(f"{place}/lines-{rank}", "w", buffering=1) as file:
                output = sys.stdout if printed else file
                num_reports = num_lines // LINES_A_REPORT
                started = 0.0
                for step in range(-(num_reports // 10) - 1, num_reports):
                    if step == 0:
                        started = time.perf_counter()
                    if rank == num_ranks - 1 and step >= 0:
                        for number in range(LINES_A_REPORT):
                            print(f"line {step * LINES_A_REPORT + number} of what training says", file=output)
                    api.report({"loss": 1.0 / (1 + abs(step))})
                rate = num_reports / (time.perf_counter() - started)
            if rank == 0:
                Path(place, "rate").write_text(repr(rate))

        fit(train, num_ranks, place, small=True)
        if printed:
            (log,) = Path(place).glob(f"storage/*/logs/rank_{num_ranks - 1}.log")
            assert len(log.read_text().splitlines()) == num_lines
        return float(Path(place, "rate").read_text())


def floor_of_start(num_ranks: int, *, small: bool) -> dict[str, float]:
    """What bare actors take to start."""
    from benchmarks import floor_ray

    start_them = floor_ray.start_small if small else floor_ray.start
    return {"floor_ms": start_them(num_ranks)["entered_ms"]}


def main(side: str, what: str, num_ranks: int, number: int) -> dict[str, float]:
    """The figures of one program."""
    fit: Fit = {"turnout": fit_turnout, "peer": fit_peer}[side]
    small = what == "small"
    floor = partial(floor_of_start, num_ranks, small=small) if side == "turnout" else None
    with own_cluster():
        if what == "recover":
            recover(side, fit, 2)
            return median_of_rounds(lambda: recover(side, fit, num_ranks), number, floor)
        if what == "lines":
            rounds = {"printed_per_s": True, "filed_per_s": False}
            start(side, fit, 2, small=True)
            return {name: lines(fit, num_ranks, number, printed=printed) for name, printed in rounds.items()}
        start(side, fit, 2, small=small)
        if small:
            return median_of_rounds(lambda: start(side, fit, num_ranks, small=True, num_reports=number), 1, floor)
        return median_of_rounds(lambda: start(side, fit, num_ranks), number, floor)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))))
