"""Train a small network in JAX to read handwritten digits: on one process or on several, with the same result.

python examples/jax_digits.py                            # in this process
TURNOUT_NUM_WORKERS=2 TURNOUT_CONTROLLER=process python examples/jax_digits.py    # on two processes of Turnout's
python examples/jax_digits.py --compare                  # and then with JAX alone
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import turnout
from turnout import Checkpoint, ScalingConfig
from turnout.jax import JaxTrainer

EPOCHS, BATCH_SIZE, LEARNING_RATE = 20, 64, 0.3


def digits() -> tuple[Any, Any, Any, Any]:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn, a fifth of them held out."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    images, labels = (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int32)
    return images[360:], labels[360:], images[:360], labels[:360]


def new_network() -> dict[str, Any]:
    """The parameters, drawn from a seed."""
    draw = np.random.default_rng(0).normal
    return {
        "hidden": draw(scale=0.1, size=(64, 64)).astype(np.float32),
        "bias": np.zeros(64, np.float32),
        "output": draw(scale=0.1, size=(64, 10)).astype(np.float32),
    }


def logits(network: dict[str, Any], images: Any) -> Any:
    """What the network says of each image, for each digit."""
    return jax.nn.relu(images @ network["hidden"] + network["bias"]) @ network["output"]


def loss_of(network: dict[str, Any], images: Any, labels: Any) -> Any:
    """The mean cross entropy."""
    says = jax.nn.log_softmax(logits(network, images))
    return -jnp.mean(jnp.take_along_axis(says, labels[:, None], axis=1))


@jax.jit
def step(network: dict[str, Any], images: Any, labels: Any) -> tuple[dict[str, Any], Any]:
    """One step of gradient descent; JAX sums the gradient over whatever devices the batch lies on."""
    loss, gradient = jax.value_and_grad(loss_of)(network, images, labels)
    return jax.tree.map(lambda value, slope: value - LEARNING_RATE * slope, network, gradient), loss


def train() -> None:
    """The train function: every rank brings its share of each batch, and all have the same network."""
    rank, ranks = turnout.get_context().get_world_rank(), turnout.get_context().get_world_size()
    mesh = Mesh(np.array(jax.devices()), ("batch",))  # the devices of all ranks
    images, labels, test_images, test_labels = digits()
    network, first_epoch = new_network(), 0
    checkpoint = turnout.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder, np.load(os.path.join(folder, "network.npz")) as saved:
            network = {name: saved[name] for name in network}
            first_epoch = int(saved["epoch"]) + 1
    network = jax.device_put(network, NamedSharding(mesh, PartitionSpec()))
    share = BATCH_SIZE // ranks
    spread = NamedSharding(mesh, PartitionSpec("batch"))
    for epoch in range(first_epoch, EPOCHS):
        for start in range(0, len(images) - BATCH_SIZE + 1, BATCH_SIZE):
            own = slice(start + rank * share, start + (rank + 1) * share)
            batch = (jax.make_array_from_process_local_data(spread, each[own]) for each in (images, labels))
            network, loss = step(network, *batch)
        metrics = {"epoch": epoch, "loss": float(loss), "accuracy": accuracy(network, test_images, test_labels)}
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:  # all have the same
                state: dict[str, Any] = {name: np.asarray(value) for name, value in network.items()}
                np.savez(os.path.join(folder, "network.npz"), epoch=epoch, **state)
            turnout.report(metrics, Checkpoint.from_directory(folder) if rank == 0 else None)


def accuracy(network: dict[str, Any], images: Any, labels: Any) -> float:
    """The share of images that the network reads right; each rank computes it by itself."""
    here = {name: np.asarray(value) for name, value in network.items()}
    return float(np.mean(np.argmax(np.asarray(logits(here, images)), axis=1) == labels))


def train_alone() -> tuple[float, float]:
    """The same in JAX alone: the loss of the last batch, and the accuracy."""
    images, labels, test_images, test_labels = digits()
    network, loss = new_network(), None
    for _ in range(EPOCHS):
        for start in range(0, len(images) - BATCH_SIZE + 1, BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            network, loss = step(network, images[batch], labels[batch])
    assert loss is not None
    return float(loss), accuracy(network, test_images, test_labels)


def main() -> None:
    """Train, and show what came of it."""
    metrics = JaxTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit().metrics
    assert metrics is not None
    print("Turnout: loss {loss:.5f}, accuracy {accuracy:.4f}".format(**metrics))
    if "--compare" in sys.argv[1:]:
        print("JAX alone: loss {:.5f}, accuracy {:.4f}".format(*train_alone()))


if __name__ == "__main__":
    main()
