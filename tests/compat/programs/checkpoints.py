"""Checkpoints: the best are kept, a failure is retried from the newest, and a second run of the same name goes on."""

import json
import os
import sys
import tempfile

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

STORAGE = sys.argv[1]


def train_loop_per_worker(config):
    start = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "step.json")) as file:
            start = json.load(file)["step"] + 1
    for step in range(start, config["steps"]):
        score = [0.1, 0.9, 0.5, 0.7, 0.3, 0.8][step]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "step.json"), "w") as file:
                json.dump({"step": step}, file)
            ray.train.report(
                {"step": step, "score": score, "start": start},
                checkpoint=Checkpoint.from_directory(folder),
                checkpoint_dir_name=f"step-{step}",
            )
        if step == config["fails_after"] and start == 0:
            raise RuntimeError("the machine caught fire")
    return start


def run(**config):
    return DataParallelTrainer(
        train_loop_per_worker,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name="checkpoints",
            storage_path=STORAGE,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score"),
        ),
    ).fit()


first = run(steps=4, fails_after=1)
second = run(steps=6, fails_after=-1)
best = second.get_best_checkpoint("score", "max")
read_back = ray.train.Result.from_path(second.path)
print(
    "RESULT",
    json.dumps(
        {
            "first started at": first.return_value,
            "first metrics": first.metrics,
            "first kept": sorted(os.path.basename(each.path) for each, _ in first.best_checkpoints),
            "second started at": second.return_value,
            "second metrics": second.metrics,
            "second kept": sorted(os.path.basename(each.path) for each, _ in second.best_checkpoints),
            "best": os.path.basename(best.path),
            "newest": os.path.basename(second.checkpoint.path),
            "read back": os.path.basename(read_back.checkpoint.path),
        }
    ),
)
