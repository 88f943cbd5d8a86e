"""Uploads beside training, an upload function of the user's, and validations of what was reported."""

import json
import os
import sys
import tempfile

import ray
import ray.train
from ray.train import (
    Checkpoint,
    CheckpointUploadMode,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

STORAGE = sys.argv[1]


def validate(checkpoint, scale):
    with checkpoint.as_directory() as folder, open(os.path.join(folder, "value.txt")) as file:
        return {"validated": scale * int(file.read())}


def train_loop_per_worker(config):
    for step in range(3):
        folder = tempfile.mkdtemp()
        with open(os.path.join(folder, "value.txt"), "w") as file:
            file.write(str(step))
        validation = [False, True, ValidationTaskConfig(fn_kwargs={"scale": 100})][step]
        ray.train.report(
            {"step": step},
            checkpoint=Checkpoint.from_directory(folder),
            checkpoint_dir_name=f"async-{step}",
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=validation,
        )
    reported = ray.train.get_all_reported_checkpoints()
    return [[os.path.basename(each.checkpoint.path), each.metrics, each.status.name] for each in reported]


result = DataParallelTrainer(
    train_loop_per_worker,
    train_loop_config={},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(name="async", storage_path=STORAGE),
    validation_config=ValidationConfig(
        fn=validate, task_config=ValidationTaskConfig(fn_kwargs={"scale": 10}), ray_remote_kwargs={"num_cpus": 1}
    ),
).fit()
print(
    "RESULT",
    json.dumps(
        {
            "reported": result.return_value,
            "metrics": result.metrics,
            "best": [[os.path.basename(each.path), metrics] for each, metrics in result.best_checkpoints],
        }
    ),
)
