"""Time 200 training steps of the network of examples/digits.py, with and without Turnout, in turn.

    python digits_loops.py ROUNDS

The loops of one round are the same code, with the same data in the same order. Each loop in a trainer stands between
two without: their mean is what it is compared with, so that a drift cancels out, and the ratio of the two says how far
the machine's own noise goes. Prints, for each loop, its seconds in every round.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from turnout import ScalingConfig, report
from turnout.torch import TorchTrainer, prepare_data_loader, prepare_model

NUM_STEPS = 200
BATCH_SIZE = 64

Batch = tuple[torch.Tensor, torch.Tensor]

images, labels = load_digits(return_X_y=True)
inputs = torch.tensor(images / 16.0, dtype=torch.float32)
targets = torch.tensor(labels)


def new_model() -> torch.nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def new_loader() -> DataLoader[Any]:
    """The same batches, from a loader."""
    return DataLoader(TensorDataset(inputs, targets), batch_size=BATCH_SIZE, drop_last=True)


def train(model: torch.nn.Module, data: Iterable[Batch], record: Callable[[dict[str, float]], None]) -> float:
    """Train, telling ``record`` of every step's loss; returns the seconds that the loop took."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    started = time.perf_counter()
    while step < NUM_STEPS:
        for x, y in data:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            record({"loss": loss.item()})
            step += 1
            if step == NUM_STEPS:
                break
    return time.perf_counter() - started


def plain() -> float:
    """No framework; the loss of each step is kept."""
    losses: list[dict[str, float]] = []
    return train(new_model(), new_loader(), losses.append)


def reporting() -> float:
    """The same in a trainer, with a report each step."""
    return fit(lambda: train(new_model(), new_loader(), report))


def prepared() -> float:
    """The same in a trainer, with the model and the loader prepared, and a report each step."""
    return fit(lambda: train(prepare_model(new_model()), prepare_data_loader(new_loader()), report))


def fit(train_fn: Callable[[], float]) -> float:
    """The seconds that the train function returned."""
    seconds: float = TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0)).fit().return_value
    return seconds


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)  # the matrices are small, and threads that wait for each other are noise
    num_rounds = int(sys.argv[1])
    seconds: dict[str, list[float]] = {}
    for loops in (
        {"before": plain, "reporting": reporting, "after": plain},
        {"before_prepared": plain, "prepared": prepared, "after_prepared": plain},
    ):
        for number in range(-1, num_rounds):  # the first is a warm-up
            for name, loop in loops.items():
                taken = loop()
                if number >= 0:
                    seconds.setdefault(name, []).append(taken)
    print(json.dumps(seconds))
