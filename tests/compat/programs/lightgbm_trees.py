"""Two workers boost one model over LightGBM's own network, and the callback reports each round."""

import json
import sys

import lightgbm
import numpy as np
import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params


def train_loop_per_worker(config):
    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    values = np.arange(64, dtype=np.float32)
    rows = values[rank::size].reshape(-1, 1)
    data = lightgbm.Dataset(rows, label=2 * rows[:, 0])
    parameters = {
        "objective": "regression",
        "tree_learner": "data_parallel",
        "pre_partition": True,
        "num_leaves": 4,
        "min_data_in_leaf": 2,
        "num_threads": 1,
        "verbose": -1,
        **get_network_params(),
    }
    lightgbm.train(
        parameters,
        data,
        num_boost_round=config["rounds"],
        valid_sets=[data],
        valid_names=["train"],
        callbacks=[RayTrainReportCallback(frequency=2)],
    )


result = LightGBMTrainer(
    train_loop_per_worker,
    train_loop_config={"rounds": 4},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="lightgbm", storage_path=sys.argv[1]),
).fit()
model = RayTrainReportCallback.get_model(result.checkpoint)
print(
    "RESULT",
    json.dumps(
        {
            "metrics": {name: round(value, 2) for name, value in result.metrics.items()},
            "predictions": [round(float(each), 1) for each in model.predict(np.array([[1.0], [60.0]]))],
            "kept": len(result.best_checkpoints),
        }
    ),
)
