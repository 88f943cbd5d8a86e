"""Grow a model with XGBoost on 2 ranks, with and without a report each round.

    python -m benchmarks.programs.boosting ray|process NUM_TURNS

Prints JSON: the seconds that 100 rounds take without a callback, with the `ReportCallback`, and the difference. Both
are trained in turn within one run, and each figure is the median of the turns.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time

from benchmarks.own_cluster import own_cluster

NUM_ROUNDS = 100
NUM_ROWS = 2_000


def train(config: dict[str, int]) -> dict[str, float]:
    """The train function; the first turn is not counted."""
    import numpy as np
    import xgboost

    import turnout
    from turnout.collective import barrier
    from turnout.xgboost import ReportCallback

    random = np.random.default_rng(turnout.get_context().get_world_rank())
    features = random.normal(size=(NUM_ROWS, 10))
    data = xgboost.DMatrix(features, features[:, 0] * features[:, 1] > 0)
    params = {"objective": "binary:logistic", "max_depth": 4}
    taken: dict[str, list[float]] = {"without_s": [], "with_s": []}
    for _ in range(1 + config["turns"]):
        for name, callbacks in (("without_s", []), ("with_s", [ReportCallback()])):
            barrier()
            started = time.perf_counter()
            xgboost.train(params, data, NUM_ROUNDS, evals=[(data, "train")], callbacks=callbacks, verbose_eval=False)
            taken[name].append(time.perf_counter() - started)
    counted = {name: values[1:] for name, values in taken.items()}
    counted["reports_s"] = [b - a for a, b in zip(counted["without_s"], counted["with_s"], strict=True)]
    return {name: statistics.median(values) for name, values in counted.items()}


def main(controller: str, num_turns: int) -> dict[str, float]:
    """Rank 0's figures."""
    from turnout import LoggingConfig, RunConfig, ScalingConfig
    from turnout.xgboost import XGBoostTrainer

    with own_cluster() if controller == "ray" else contextlib.nullcontext(), tempfile.TemporaryDirectory() as folder:
        result = XGBoostTrainer(
            train,
            train_loop_config={"turns": num_turns},
            scaling_config=ScalingConfig(num_workers=2, controller=controller),
            run_config=RunConfig(storage_path=folder, logging_config=LoggingConfig("ERROR")),
        ).fit()
        figures: dict[str, float] = result.return_values[0]
        return figures


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
