"""A callback that writes down what it is told, a run that fails, and what is known of the failure."""

import json
import os
import sys

import ray
import ray.train
import ray.train.collective
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

STORAGE = sys.argv[1]
os.makedirs(STORAGE, exist_ok=True)
DIARY = os.path.join(STORAGE, "diary.jsonl")


class Diary(UserCallback):
    """Callbacks may run in another process: they write into a file."""

    def __init__(self, path):
        self.path = path

    def write(self, line):
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def after_report(self, run_context, metrics, checkpoint):
        name = run_context.get_run_config().name
        self.write([name, [each["rank"] for each in metrics], checkpoint is not None])

    def after_exception(self, run_context, worker_exceptions):
        self.write(sorted((rank, type(error).__name__) for rank, error in worker_exceptions.items()))


def train_loop_per_worker():
    rank = ray.train.get_context().get_world_rank()
    ray.train.report({"rank": rank})
    ray.train.collective.barrier()
    if rank == 1:
        raise KeyError("lost")
    ray.train.collective.barrier()


told = {}
try:
    DataParallelTrainer(
        train_loop_per_worker,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="callbacks",
            storage_path=STORAGE,
            callbacks=[Diary(DIARY)],
            failure_config=FailureConfig(max_failures=0),
        ),
    ).fit()
except ray.train.WorkerGroupError as error:
    told = {
        "is TrainingFailedError": isinstance(error, ray.train.TrainingFailedError),
        "is KeyError": isinstance(error, KeyError),
        "worker failures": {rank: type(each).__name__ for rank, each in error.worker_failures.items()},
    }
with open(DIARY) as file:
    lines = [json.loads(line) for line in file]
print("RESULT", json.dumps({"diary": lines, **told}))
