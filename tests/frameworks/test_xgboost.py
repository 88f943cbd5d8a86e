"""XGBoost on the tracks: one model of all ranks, a report each round, and an interrupted one that becomes the same."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost

import turnout
from tests.frameworks.boosting import (
    ROUNDS,
    Array,
    refusals_with_version,
    refusals_without,
    rows,
    share,
    within,
)
from turnout import (
    DataConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    UnsupportedError,
    UsageError,
)
from turnout.testing.ranks import warm_server
from turnout.xgboost import ReportCallback, XGBoostConfig, XGBoostTrainer, resume

# The bins are all the values that there are, so that two ranks that have half of them each find the same ones.
PARAMS = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 512, "max_depth": 3, "seed": 7}
TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def _warm(request: pytest.FixtureRequest) -> None:
    """One server for all three modules of boosters."""
    warm_server(request.config).start(["xgboost", "lightgbm"])


def fit(train_fn: Callable[..., Any], folder: Path | None, num_workers: int = 0, **arguments: Any) -> Result:
    run_config = RunConfig(
        storage_path=None if folder is None else str(folder), failure_config=arguments.pop("failure_config", None)
    )
    scaling = ScalingConfig(num_workers, controller="process" if num_workers else None)
    return XGBoostTrainer(train_fn, scaling_config=scaling, run_config=run_config, **arguments).fit()


def held_out() -> xgboost.DMatrix:
    return xgboost.DMatrix(*rows(seed=1))


def grow(callbacks: list[Any], num_rounds: int = ROUNDS, model: xgboost.Booster | None = None) -> xgboost.Booster:
    """Train on this rank's rows."""
    return xgboost.train(
        PARAMS,
        xgboost.DMatrix(*share()),
        num_rounds,
        evals=[(held_out(), "test")],
        xgb_model=model,
        callbacks=callbacks,
        verbose_eval=False,
    )


@pytest.fixture(scope="module")
def alone() -> tuple[Array, float]:
    """The predictions and the loss of XGBoost alone on all rows."""
    log: dict[str, Any] = {}
    model = xgboost.train(
        PARAMS, xgboost.DMatrix(*rows()), ROUNDS, evals=[(held_out(), "test")], evals_result=log, verbose_eval=False
    )
    return model.predict(held_out()), log["test"]["logloss"][-1]


# In process


def test_each_round_is_a_report_and_the_last_has_the_model_of_xgboost_alone(
    tmp_path: Path, alone: tuple[Array, float]
) -> None:
    result = fit(lambda: grow([ReportCallback()]) and None, tmp_path)
    history = result.metrics_dataframe
    assert history is not None
    assert len(history) == ROUNDS
    assert result.metrics == {"test-logloss": alone[1]}
    assert result.checkpoint is not None
    model = ReportCallback.get_model(result.checkpoint)
    assert model.num_boosted_rounds() == ROUNDS
    assert np.array_equal(model.predict(held_out()), alone[0])


def reported(callback: ReportCallback, **arguments: Any) -> list[tuple[dict[str, Any], bool]]:
    """The metrics of each report of three rounds, and whether it had a checkpoint."""
    found = []

    class Collector(turnout.UserCallback):
        def after_report(
            self,
            run_context: turnout.TrainRunContext,
            metrics: list[dict[str, Any]],
            checkpoint: turnout.Checkpoint | None,
        ) -> None:
            found.append((metrics[0], checkpoint is not None))

    def train() -> None:
        data = xgboost.DMatrix(*rows())
        xgboost.train(PARAMS, data, 3, evals=[(data, "train")], callbacks=[callback], verbose_eval=False, **arguments)

    XGBoostTrainer(
        train, scaling_config=ScalingConfig(num_workers=0), run_config=RunConfig(callbacks=[Collector()])
    ).fit()
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [False, False, True]),
        ({"frequency": 1}, [True, True, True]),
        ({"frequency": 2}, [False, True, True]),
        ({"frequency": 2, "checkpoint_at_end": False}, [False, True, False]),
        ({"checkpoint_at_end": False}, [False, False, False]),
        ({"filename": "model.json"}, [False, False, True]),
    ],
)
def test_the_model_goes_along_when_it_is_due(arguments: dict[str, Any], expected: list[bool]) -> None:
    assert [has_model for _, has_model in reported(ReportCallback(**arguments))] == expected


def test_metrics_are_chosen_renamed_and_processed() -> None:
    assert list(reported(ReportCallback("train-logloss"))[0][0]) == ["train-logloss"]
    assert list(reported(ReportCallback(["train-logloss"]))[0][0]) == ["train-logloss"]
    renamed = ReportCallback({"loss": "train-logloss"}, results_postprocessing_fn=lambda found: {**found, "more": 1})
    assert set(reported(renamed)[0][0]) == {"loss", "more"}
    with pytest.raises(UsageError, match=r"names 'eval-auc'; the metrics of a round are 'train-logloss'"):
        reported(ReportCallback(["eval-auc"]))


def test_early_stopping_leaves_the_model_of_its_last_round() -> None:
    found = reported(ReportCallback(), early_stopping_rounds=1, maximize=True)
    assert [has_model for _, has_model in found] == [False, True]


def test_a_model_without_data_to_evaluate_is_reported_without_metrics() -> None:
    result = fit(
        lambda: xgboost.train(PARAMS, xgboost.DMatrix(*rows()), 2, callbacks=[ReportCallback()]) and None, None
    )
    assert result.metrics == {}
    assert result.checkpoint is not None


def test_cross_validation_reports_means_and_deviations_and_no_model() -> None:
    def train() -> None:
        xgboost.cv(PARAMS, xgboost.DMatrix(*rows()), 2, nfold=2, callbacks=[ReportCallback(frequency=1)])

    result = fit(train, None)
    assert set(result.metrics or {}) == {
        f"{data}-logloss-{what}" for data in ("train", "test") for what in ("mean", "stdv")
    }
    assert result.checkpoint is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"metrics": 3},
        {"metrics": {"loss": 3}},
        {"metrics": [None]},
        {"filename": "model"},
        {"filename": "a/model.ubj"},
        {"frequency": -1},
        {"frequency": 1.5},
        {"checkpoint_at_end": 1},
        {"results_postprocessing_fn": "mean"},
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"ReportCallback.{next(iter(arguments))}"):
        ReportCallback(**arguments)


def test_a_callback_out_of_a_pickle_is_one_of_xgboosts() -> None:
    assert isinstance(pickle.loads(pickle.dumps(ReportCallback())), xgboost.callback.TrainingCallback)


def test_a_checkpoint_without_the_model_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "other.ubj").touch()
    with pytest.raises(turnout.CheckpointNotFoundError, match=r"has no model 'model\.ubj'; it has other\.ubj"):
        ReportCallback.get_model(turnout.Checkpoint(tmp_path))


def test_resume_is_called_in_a_run_with_the_rounds_of_the_whole_model() -> None:
    with pytest.raises(UsageError):
        resume(10)
    with pytest.raises(UsageError, match="num_boost_round=0"):
        fit(lambda: resume(0), None)


def test_the_configuration_says_what_it_takes() -> None:
    with pytest.raises(UnsupportedError, match="'federated'"):
        XGBoostConfig(xgboost_communicator="federated")
    with pytest.raises(UsageError, match=r"XGBoostConfig\.timeout_s"):
        XGBoostConfig(timeout_s=0)


# Two ranks


def train_together() -> dict[str, Any]:
    model = grow([ReportCallback(frequency=4)])
    return {
        "ranks": (xgboost.collective.get_rank(), xgboost.collective.get_world_size()),
        "predictions": model.predict(held_out()),
        "num_threads": xgboost.core._LIB.omp_get_max_threads(),
    }


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What came of two ranks with half of the rows each."""
    return fit(train_together, tmp_path_factory.mktemp("together"), num_workers=2)


def test_two_ranks_grow_one_model_as_good_as_that_of_xgboost_alone(
    together: Result, alone: tuple[Array, float]
) -> None:
    first, second = together.return_values
    assert [first["ranks"], second["ranks"]] == [(0, 2), (1, 2)]
    assert np.array_equal(first["predictions"], second["predictions"])
    assert together.metrics is not None
    assert together.metrics["test-logloss"] == pytest.approx(alone[1], abs=TOLERANCE)


def test_two_ranks_report_each_round_once_and_rank_zero_brings_the_model(together: Result) -> None:
    assert together.metrics_dataframe is not None
    assert len(together.metrics_dataframe) == ROUNDS
    assert together.checkpoint is not None
    with together.checkpoint.as_directory() as folder:
        assert [name for name in os.listdir(folder) if not name.startswith(".")] == ["model.ubj"]
    predictions = ReportCallback.get_model(together.checkpoint).predict(held_out())
    assert np.array_equal(predictions, together.return_values[0]["predictions"])


def test_two_ranks_share_the_cores(together: Result) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [each["num_threads"] for each in together.return_values] == [share, share]


class Interrupts(xgboost.callback.TrainingCallback):
    """Raises after the sixth round, the first time."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch == 5:
            raise InterruptedError("after 6 rounds")
        return False


def train_with_an_interruption() -> tuple[int, Array]:
    model, left = resume(ROUNDS)
    interrupts = [Interrupts()] if model is None else []
    return left, grow([ReportCallback(frequency=3), *interrupts], left, model).predict(held_out())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupted_model_has_all_rounds_and_predicts_as_an_undisturbed_one(
    num_workers: int, tmp_path: Path, alone: tuple[Array, float], together: Result
) -> None:
    result = fit(
        train_with_an_interruption, tmp_path, num_workers=num_workers, failure_config=FailureConfig(max_failures=1)
    )
    expected = together.return_values[0]["predictions"] if num_workers else alone[0]
    for left, predictions in result.return_values:
        assert left == 4
        assert np.array_equal(predictions, expected)
    assert result.checkpoint is not None
    assert ReportCallback.get_model(result.checkpoint).num_boosted_rounds() == ROUNDS


def matrix_of(shard: Any) -> xgboost.DMatrix:
    frame = shard.to_pandas()
    return xgboost.DMatrix(frame.drop(columns="label"), frame["label"])


def train_on_shards() -> list[int]:
    data = [matrix_of(turnout.get_dataset_shard(name)) for name in ("train", "test")]
    xgboost.train(PARAMS, data[0], ROUNDS, evals=[(data[1], "test")], callbacks=[ReportCallback()], verbose_eval=False)
    return [each.num_row() for each in data]


def table(seed: int = 0) -> pa.Table:
    features, labels = rows(seed)
    return pa.table({**{f"f{number}": column for number, column in enumerate(features.T)}, "label": labels})


def test_ranks_train_on_their_shards_of_arrow_data(tmp_path: Path, alone: tuple[Array, float]) -> None:
    result = fit(
        train_on_shards,
        tmp_path,
        num_workers=2,
        datasets={"train": table(), "test": table(seed=1)},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    )
    assert result.return_values == [[100, 200]] * 2
    assert result.metrics is not None
    assert result.metrics["test-logloss"] == pytest.approx(alone[1], abs=TOLERANCE)


# What goes wrong


def train_each_alone() -> None:
    grow([ReportCallback()], 1)


def test_ranks_that_train_alone_are_told_once_what_would_have_them_train_together(tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        train_each_alone,
        scaling_config=ScalingConfig(2, controller="process"),
        run_config=RunConfig(name="alone", storage_path=str(tmp_path)),
    )
    trainer.fit()
    said = "".join(path.read_text() for path in (tmp_path / "alone" / "logs").iterdir())
    assert said.count("XGBoost trains a model of its own on each of 2 ranks, of which rank 0's is kept") == 1


class FailsOnRankOne(xgboost.callback.TrainingCallback):
    """Fails after the third round, when the other rank goes on to the next and waits in it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch == 2 and turnout.get_context().get_world_rank() == 1:
            if self.how == "raises":
                raise LookupError("of the user's")
            os.kill(os.getpid(), signal.SIGKILL)
        return False


def fail_in_the_middle(config: dict[str, str]) -> None:
    grow([FailsOnRankOne(config["how"])])


def test_an_error_of_one_rank_ends_the_run_while_another_waits_in_a_round(tmp_path: Path) -> None:
    with within(30), pytest.raises(LookupError, match="of the user's"):
        fit(fail_in_the_middle, tmp_path, num_workers=2, train_loop_config={"how": "raises"})


def test_the_death_of_one_rank_ends_the_run_while_another_waits_in_a_round(tmp_path: Path) -> None:
    with within(30), pytest.raises(turnout.WorkerGroupError, match="rank 1 was killed by SIGKILL"):
        fit(fail_in_the_middle, tmp_path, num_workers=2, train_loop_config={"how": "dies"})


def test_without_xgboost_every_call_names_the_line_that_installs_it(tmp_path: Path) -> None:
    said = refusals_without("xgboost", "XGBoostTrainer", tmp_path)
    assert len(said) == 4
    for line in said:
        assert "needs the package 'xgboost', which is not installed" in line
        assert "pip install 'turnout[xgboost]'" in line


def test_a_version_that_is_too_old_is_told_which_is_needed(tmp_path: Path) -> None:
    said = refusals_with_version("1.7.6", "xgboost", "XGBoostTrainer", tmp_path)
    assert len(said) == 4
    for line in said:
        assert "needs xgboost 2.1 or newer, and 1.7.6 is installed" in line
