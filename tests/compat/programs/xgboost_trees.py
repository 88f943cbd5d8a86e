"""Two workers boost one model, and the callback reports each round."""

import json
import sys

import numpy as np
import ray
import ray.train
import xgboost
from ray.train import RunConfig, ScalingConfig
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer


def train_loop_per_worker(config):
    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    values = np.arange(64, dtype=np.float32)
    rows = values[rank::size].reshape(-1, 1)
    data = xgboost.DMatrix(rows, label=2 * rows[:, 0])
    xgboost.train(
        {"objective": "reg:squarederror", "max_depth": 3, "tree_method": "hist", "nthread": 1},
        data,
        num_boost_round=config["rounds"],
        evals=[(data, "train")],
        verbose_eval=False,
        callbacks=[RayTrainReportCallback(frequency=2)],
    )


result = XGBoostTrainer(
    train_loop_per_worker,
    train_loop_config={"rounds": 4},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="xgboost", storage_path=sys.argv[1]),
).fit()
model = RayTrainReportCallback.get_model(result.checkpoint)
rows = xgboost.DMatrix(np.array([[1.0], [60.0]], dtype=np.float32))
print(
    "RESULT",
    json.dumps(
        {
            "metrics": {name: round(value, 2) for name, value in result.metrics.items()},
            "predictions": [round(float(each), 1) for each in model.predict(rows)],
            "kept": len(result.best_checkpoints),
        }
    ),
)
