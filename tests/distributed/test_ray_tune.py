"""`fit()` inside of a Ray Tune trial."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from turnout import DataParallelTrainer, RunConfig, ScalingConfig


@pytest.mark.usefixtures("cluster")
@pytest.mark.timeout(120)
def test_a_trial_may_train_on_workers_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # Tune sets it, and a handler of its own
    handler = signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from ray import tune

        def trial(config: dict[str, Any]) -> None:
            def train() -> None:
                import turnout

                turnout.report({"product": 10 * config["factor"] + turnout.get_context().get_world_rank()})

            result = DataParallelTrainer(
                train,
                scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
                run_config=RunConfig(storage_path=str(tmp_path / "runs")),
            ).fit()
            tune.report(result.metrics)

        tuner = tune.Tuner(
            trial,
            param_space={"factor": tune.grid_search([1, 2])},
            run_config=tune.RunConfig(storage_path=str(tmp_path / "trials"), verbose=0),
        )
        try:
            results = tuner.fit()
        finally:
            signal.signal(signal.SIGINT, handler)

    assert sorted((results[index].metrics or {})["product"] for index in range(len(results))) == [10, 20]
