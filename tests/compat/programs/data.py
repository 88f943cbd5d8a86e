"""Ray Data feeds the workers: one data set is cut, the other is whole on each."""

import json
import sys

import ray
import ray.data
import ray.train
import ray.train.collective
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_loop_per_worker():
    shard = ray.train.get_dataset_shard("train")
    rows = total = 0
    for _ in range(2):
        for batch in shard.iter_torch_batches(batch_size=4):
            rows += len(batch["x"])
            total += int(batch["x"].sum())
    whole = sum(row["id"] for row in ray.train.get_dataset_shard("eval").iter_rows())
    both = ray.train.collective.broadcast_from_rank_zero(rows)
    ray.train.report({"rows": rows, "rows of rank 0": both, "eval": whole})
    return [rows, whole]


train = ray.data.range(32, override_num_blocks=4).map(lambda row: {"x": 2 * row["id"]})
result = TorchTrainer(
    train_loop_per_worker,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="data", storage_path=sys.argv[1]),
    datasets={"train": train, "eval": ray.data.range(10)},
    dataset_config=DataConfig(datasets_to_split=["train"]),
).fit()
print("RESULT", json.dumps({"value": result.return_value, "metrics": result.metrics}))
