"""A driver on a Ray cluster, whose ranks train until a file says stop; made to be disturbed, and started again.

    python tests/chaos/train_program.py ADDRESS FOLDER

Its ranks note in ``FOLDER/notes``, on the disk before the next step begins, what they were promised:
``pid <rank> <pid>`` and ``returned <step>``. At its end it prints the last step and its loss, which are a function of
the seed alone.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
from pathlib import Path

import turnout
from turnout import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from turnout.collective import barrier, broadcast_from_rank_zero

SEED = 5
NAME = "run"
_NUM_ROWS, _NUM_WEIGHTS = 64, 16


class Model:
    """A linear model and how it is fitted, in plain floats: the same everywhere, to the last bit."""

    def __init__(self) -> None:
        source = random.Random(SEED)
        true = [source.gauss(0, 1) for _ in range(_NUM_WEIGHTS)]
        self._rows = [[source.gauss(0, 1) for _ in true] for _ in range(_NUM_ROWS)]
        self._targets = [sum(map(float.__mul__, true, row)) for row in self._rows]
        self.weights = [0.0] * _NUM_WEIGHTS

    def step(self) -> float:
        """Take a step down the gradient; returns the loss before it."""
        errors = [
            sum(map(float.__mul__, self.weights, row)) - target
            for row, target in zip(self._rows, self._targets, strict=True)
        ]
        for index in range(_NUM_WEIGHTS):
            slope = sum(error * row[index] for error, row in zip(errors, self._rows, strict=True))
            self.weights[index] -= 0.01 * slope / _NUM_ROWS
        return sum(error * error for error in errors) / _NUM_ROWS


def loss_of_step(step: int) -> float:
    """The loss of an undisturbed run."""
    model = Model()
    losses = [model.step() for _ in range(step + 1)]
    return losses[-1]


def add_note(folder: Path, text: str) -> None:
    handle = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(handle, f"{text}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def train(config: dict[str, str]) -> tuple[int, float]:
    folder = Path(config["folder"])
    rank = turnout.get_context().get_world_rank()
    add_note(folder, f"pid {rank} {os.getpid()}")
    model, step, loss = Model(), -1, float("nan")
    checkpoint = turnout.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as saved:
            state = json.loads(Path(saved, "state.json").read_text())
        model.weights, step, loss = state["weights"], state["step"], state["loss"]
    while not broadcast_from_rank_zero((folder / "stop").exists()):
        loss = model.step()
        step += 1
        with tempfile.TemporaryDirectory() as saved:
            Path(saved, "state.json").write_text(json.dumps({"weights": model.weights, "step": step, "loss": loss}))
            Path(saved, f"rank-{rank}").write_bytes(random.Random(f"{step} {rank}").randbytes(50_000))
            turnout.report({"step": step, "loss": loss}, Checkpoint(saved))
        add_note(folder, f"returned {step}")
        barrier()
    return step, loss


def main(address: str, folder: str) -> None:
    import ray

    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    result = turnout.DataParallelTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD", controller="ray"),
        run_config=RunConfig(
            name=NAME,
            storage_path=os.path.join(folder, "storage"),
            checkpoint_config=CheckpointConfig(num_to_keep=None),
            failure_config=FailureConfig(max_failures=-1),
        ),
    ).fit()
    sys.stdout.write(f"done {json.dumps(result.return_values)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
