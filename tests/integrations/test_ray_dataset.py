"""A Ray dataset works in process when it is handed in; it runs in a process of its own, which Ray may clutter."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ray, turnout
ray.init(address="local", include_dashboard=False, num_cpus=2, log_to_driver=False)
dataset = ray.data.from_items([{"x": float(i)} for i in range(10)])

def train():
    shard = turnout.get_dataset_shard("train")
    assert shard is dataset
    batches = shard.iter_torch_batches(batch_size=4, device="cpu")
    turnout.report({"sum": sum(batch["x"].sum() for batch in batches)})

trainer = turnout.DataParallelTrainer(
    train, scaling_config=turnout.ScalingConfig(num_workers=0), datasets={"train": dataset}
)
print(trainer.fit().metrics)
"""


def test_a_ray_dataset_is_itself_in_the_train_function() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=55, check=False)
    assert done.stdout.splitlines()[-1:] == ["{'sum': 45.0}"], done.stderr
