"""Tell malignant tumours from benign ones with LightGBM, and compare with LightGBM alone.

python examples/lightgbm_breast_cancer.py                            # in this process
TURNOUT_NUM_WORKERS=2 TURNOUT_CONTROLLER=process python examples/lightgbm_breast_cancer.py    # on two ranks

Two ranks have half of the rows each, and grow one model from all of them. It is that of one process, since nothing is
left that LightGBM would have each rank estimate from its own rows: the bins come from a sample that all have, the first
score is 0, and no leaf is refused for the number of its rows.
"""

from __future__ import annotations

import os
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
from sklearn.datasets import load_breast_cancer

import turnout
from turnout import DataConfig, LoggingConfig, Result, RunConfig, ScalingConfig
from turnout.lightgbm import LightGBMTrainer, ReportCallback, get_network_params, resume

PARAMS = {
    "objective": "binary",
    "tree_learner": "data",  # one model from the rows of all ranks
    "pre_partition": True,  # each rank has rows of its own
    "boost_from_average": False,
    "min_data_in_leaf": 1,
    "min_sum_hessian_in_leaf": 2.0,
    "learning_rate": 0.2,
    "num_leaves": 8,
    "verbosity": -1,
}
ROUNDS = 40


def tumours() -> dict[str, pa.Table]:
    """The 569 tumours that come with scikit-learn, measured 30 times each; 113 of them held out."""
    data = load_breast_cancer()
    columns = {
        str(name).replace(" ", "_"): column for name, column in zip(data.feature_names, data.data.T, strict=True)
    }
    table = pa.table({**columns, "is_benign": data.target}).take(np.random.default_rng(0).permutation(569))
    return {"train": table.slice(0, 456), "sample": table.slice(0, 300), "test": table.slice(456)}


def dataset(rows: Any, reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
    """As LightGBM takes a table or a shard of it."""
    frame = rows.to_pandas()
    return lightgbm.Dataset(frame.drop(columns="is_benign"), frame["is_benign"], reference=reference, params=PARAMS)


def train() -> None:
    """The train function: it resumes from the newest model, of which it reports one every 10 rounds."""
    sample = dataset(turnout.get_dataset_shard("sample"))
    rows = dataset(turnout.get_dataset_shard("train"), reference=sample)
    held_out = dataset(turnout.get_dataset_shard("test"), reference=rows)
    model, rounds_left = resume(ROUNDS)
    lightgbm.train(
        {**PARAMS, **get_network_params()},
        rows,
        rounds_left,
        valid_sets=[held_out],
        valid_names=["test"],
        init_model=model,
        callbacks=[ReportCallback(frequency=10)],
    )


def main() -> Result:
    """Train with Turnout and without."""
    data = tumours()
    result = LightGBMTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(logging_config=LoggingConfig("WARNING")),
        datasets=data,
        dataset_config=DataConfig(datasets_to_split=["train"]),  # the others are whole on every rank
    ).fit()
    assert result.metrics is not None
    assert result.checkpoint is not None
    model = ReportCallback.get_model(result.checkpoint)
    rows = dataset(data["train"], reference=dataset(data["sample"]))
    alone = lightgbm.train(PARAMS, rows, ROUNDS, [dataset(data["test"], reference=rows)], ["test"])
    if os.environ.get("RANK", "0") == "0":
        frame = data["test"].to_pandas()
        predicted = np.asarray(model.predict(frame.drop(columns="is_benign")))
        accuracy = np.mean((predicted > 0.5) == frame["is_benign"])
        print(f"{model.current_iteration()} rounds, {accuracy:.1%} of the tumours told right")
        loss = alone.best_score["test"]["binary_logloss"]
        print(f"log loss: {result.metrics['test-binary_logloss']:.5f}; of LightGBM alone: {loss:.5f}")
    return result


if __name__ == "__main__":
    main()
