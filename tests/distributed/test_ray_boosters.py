"""XGBoost and LightGBM on Ray's ranks: one model from their shares of Ray's data, and of Arrow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import turnout
from tests.frameworks.boosting import rows
from turnout import DataConfig, RunConfig, ScalingConfig
from turnout.lightgbm import LightGBMTrainer, get_network_params
from turnout.lightgbm import ReportCallback as LightGBMReportCallback
from turnout.xgboost import ReportCallback as XGBoostReportCallback
from turnout.xgboost import XGBoostTrainer

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data's own
]
ROUNDS = 5


def table(seed: int = 0) -> pa.Table:
    features, labels = rows(seed)
    return pa.table({**{f"f{number}": column for number, column in enumerate(features.T)}, "label": labels})


def arguments(folder: Path, train: Any) -> dict[str, Any]:
    return {
        "datasets": {"train": train, "test": table(seed=1)},
        "dataset_config": DataConfig(datasets_to_split=["train"]),
        "scaling_config": ScalingConfig(num_workers=2, controller="ray"),
        "run_config": RunConfig(storage_path=str(folder)),
    }


def test_xgboost_trains_one_model_on_the_shares_of_a_ray_data_set(tmp_path: Path) -> None:
    import ray.data
    import xgboost

    params = {"objective": "binary:logistic", "max_bin": 512, "max_depth": 3}

    def matrix(rows: Any) -> xgboost.DMatrix:
        frame = rows.to_pandas()
        return xgboost.DMatrix(frame.drop(columns="label"), frame["label"])

    def train() -> int:
        shards = [matrix(turnout.get_dataset_shard(name)) for name in ("train", "test")]
        xgboost.train(params, shards[0], ROUNDS, evals=[(shards[1], "test")], callbacks=[XGBoostReportCallback()])
        num_rows: int = shards[0].num_row()
        return num_rows

    ray.data.DataContext.get_current().enable_progress_bars = False
    result = XGBoostTrainer(train, **arguments(tmp_path, ray.data.from_arrow(table()))).fit()
    log: dict[str, Any] = {}
    xgboost.train(params, matrix(table()), ROUNDS, evals=[(matrix(table(seed=1)), "test")], evals_result=log)
    assert result.return_values == [100, 100]
    assert result.metrics_dataframe is not None
    assert len(result.metrics_dataframe) == ROUNDS
    assert result.metrics == {"test-logloss": pytest.approx(log["test"]["logloss"][-1], abs=1e-5)}
    assert result.checkpoint is not None
    assert XGBoostReportCallback.get_model(result.checkpoint).num_boosted_rounds() == ROUNDS


def test_lightgbm_trains_one_model_on_the_shares_of_arrow_data(tmp_path: Path) -> None:
    import lightgbm

    params = {"objective": "binary", "tree_learner": "data", "pre_partition": True, "num_leaves": 8, "verbosity": -1}

    def dataset(rows: Any, reference: Any = None) -> lightgbm.Dataset:
        frame = rows.to_pandas()
        return lightgbm.Dataset(frame.drop(columns="label"), frame["label"], reference=reference)

    def train() -> Any:
        network = get_network_params()
        data = dataset(turnout.get_dataset_shard("train"))
        test = dataset(turnout.get_dataset_shard("test"), reference=data)
        callbacks: list[Any] = [LightGBMReportCallback()]
        model = lightgbm.train({**params, **network}, data, ROUNDS, [test], ["test"], callbacks=callbacks)
        frame = turnout.get_dataset_shard("test").to_pandas().drop(columns="label")
        return np.asarray(model.predict(frame)).tolist()

    result = LightGBMTrainer(train, **arguments(tmp_path, table())).fit()
    data = dataset(table())
    alone = lightgbm.train(params, data, ROUNDS, [dataset(table(seed=1), reference=data)], ["test"])
    assert result.return_values[0] == result.return_values[1]
    loss = alone.best_score["test"]["binary_logloss"]
    assert result.metrics == {"test-binary_logloss": pytest.approx(loss, abs=0.03)}
    assert result.checkpoint is not None
    assert LightGBMReportCallback.get_model(result.checkpoint).current_iteration() == ROUNDS
