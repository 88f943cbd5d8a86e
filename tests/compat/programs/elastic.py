"""An elastic run takes what there is room for."""

import json
import sys

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train_loop_per_worker():
    ray.train.report({"workers": ray.train.get_context().get_world_size()})
    return ray.train.get_context().get_world_size()


scaling = ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=60.0)
result = DataParallelTrainer(
    train_loop_per_worker,
    scaling_config=scaling,
    run_config=RunConfig(name="elastic", storage_path=sys.argv[1]),
).fit()
print(
    "RESULT",
    json.dumps({"workers": result.return_value, "range": [scaling.min_workers, scaling.max_workers]}),
)
