"""Tell malignant tumours from benign ones with XGBoost, and compare with XGBoost alone.

python examples/xgboost_breast_cancer.py                            # in this process
TURNOUT_NUM_WORKERS=2 TURNOUT_CONTROLLER=process python examples/xgboost_breast_cancer.py    # on two ranks

Two ranks have half of the rows each, and grow the same trees as one process that has them all.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import xgboost
from sklearn.datasets import load_breast_cancer

import turnout
from turnout import DataConfig, LoggingConfig, Result, RunConfig, ScalingConfig
from turnout.xgboost import ReportCallback, XGBoostTrainer, resume

PARAMS = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 512, "eta": 0.1, "max_depth": 3}
ROUNDS = 40


def tumours() -> dict[str, pa.Table]:
    """The 569 tumours that come with scikit-learn, measured 30 times each; 113 of them held out."""
    data = load_breast_cancer()
    columns = dict(zip(map(str, data.feature_names), data.data.T, strict=True))
    table = pa.table({**columns, "is_benign": data.target}).take(np.random.default_rng(0).permutation(569))
    return {"train": table.slice(0, 456), "test": table.slice(456)}


def matrix(rows: Any) -> xgboost.DMatrix:
    """As XGBoost takes a table or a shard of it."""
    frame = rows.to_pandas()
    return xgboost.DMatrix(frame.drop(columns="is_benign"), frame["is_benign"])


def train() -> None:
    """The train function: it resumes from the newest model, of which it reports one every 10 rounds."""
    rows, held_out = (matrix(turnout.get_dataset_shard(name)) for name in ("train", "test"))
    model, rounds_left = resume(ROUNDS)
    xgboost.train(
        PARAMS,
        rows,
        rounds_left,
        evals=[(held_out, "test")],
        xgb_model=model,
        callbacks=[ReportCallback(frequency=10)],
        verbose_eval=False,
    )


def main() -> Result:
    """Train with Turnout and without."""
    data = tumours()
    result = XGBoostTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(logging_config=LoggingConfig("WARNING")),
        datasets=data,
        dataset_config=DataConfig(datasets_to_split=["train"]),  # every rank tests on all that was held out
    ).fit()
    assert result.metrics is not None
    assert result.checkpoint is not None
    model = ReportCallback.get_model(result.checkpoint)
    alone: dict[str, Any] = {}
    rows, held_out = matrix(data["train"]), matrix(data["test"])
    xgboost.train(PARAMS, rows, ROUNDS, evals=[(held_out, "test")], evals_result=alone, verbose_eval=False)
    if os.environ.get("RANK", "0") == "0":
        accuracy = np.mean((model.predict(held_out) > 0.5) == held_out.get_label())
        print(f"{model.num_boosted_rounds()} rounds, {accuracy:.1%} of the tumours told right")
        print(f"log loss: {result.metrics['test-logloss']:.5f}; of XGBoost alone: {alone['test']['logloss'][-1]:.5f}")
    return result


if __name__ == "__main__":
    main()
