"""Kill it, run it again, watch it go on: a run that is known by its name and kept in a folder.

python examples/resume.py            # press Ctrl-C, or kill -9 it, at any moment
python examples/resume.py            # goes on from its newest checkpoint
python examples/resume.py --kill-at 5    # kills itself with SIGKILL in the middle of step 5
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

import turnout
from turnout import Checkpoint, CheckpointConfig, DataParallelTrainer, LoggingConfig, Result, RunConfig, ScalingConfig


def train(config: dict[str, Any]) -> int:
    """Logistic regression by gradient descent on the breast cancer data; returns the step that it began with."""
    data = load_breast_cancer()
    inputs = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    weights, first = np.zeros(inputs.shape[1]), 0

    checkpoint = turnout.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            weights = np.load(os.path.join(folder, "weights.npy"))
            first = int(Path(folder, "step").read_text()) + 1
        print(f"goes on from step {first}")

    for step in range(first, config["steps"]):
        for _ in range(20):
            predicted = 1 / (1 + np.exp(-inputs @ weights))
            weights -= 0.1 * inputs.T @ (predicted - data.target) / len(inputs)
        time.sleep(config["seconds_per_step"])
        if step == config["kill_at"]:
            print(f"step {step}: kill -9", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        accuracy = float(((predicted > 0.5) == data.target).mean())
        with tempfile.TemporaryDirectory() as folder:
            np.save(os.path.join(folder, "weights.npy"), weights)
            Path(folder, "step").write_text(str(step))
            turnout.report({"step": step, "accuracy": accuracy}, checkpoint=Checkpoint.from_directory(folder))
        # From here on this step is safe, whatever happens to the process or the machine.
        print(f"step {step}: accuracy {accuracy:.3f}, committed", flush=True)
    return first


def main() -> Result:
    """Run it, or go on with it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--storage-path", default="~/turnout_results")
    parser.add_argument("--name", default="breast-cancer")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds-per-step", type=float, default=0.3)
    parser.add_argument("--kill-at", type=int, help="kill the process with SIGKILL in the middle of this step")
    arguments = parser.parse_args()
    trainer = DataParallelTrainer(
        train,
        train_loop_config={
            "steps": arguments.steps,
            "seconds_per_step": arguments.seconds_per_step,
            "kill_at": arguments.kill_at,
        },
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage_path,
            checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="accuracy"),
            logging_config=LoggingConfig("WARNING"),
        ),
    )
    result = trainer.fit()
    print(f"finished: {result.metrics}, kept in {result.path}")
    print(f"best: {result.get_best_checkpoint('accuracy', 'max').path}")
    return result


if __name__ == "__main__":
    main()
