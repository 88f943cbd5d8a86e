"""Train a Keras model to read handwritten digits: on one process or on several, with the same result.

python examples/keras_digits.py                            # in this process
TURNOUT_NUM_WORKERS=2 TURNOUT_CONTROLLER=process python examples/keras_digits.py    # on two processes of Turnout's
python examples/keras_digits.py --compare                  # and then with Keras alone
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import turnout
from turnout import ScalingConfig
from turnout.tensorflow import ReportCallback, TensorflowTrainer

EPOCHS, BATCH_SIZE = 6, 64


def digits() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn, a fifth of them held out."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    images, labels = (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int32)
    train = tf.data.Dataset.from_tensor_slices((images[360:], labels[360:]))
    held_out = tf.data.Dataset.from_tensor_slices((images[:360], labels[:360]))
    return train.batch(BATCH_SIZE, drop_remainder=True), held_out.batch(BATCH_SIZE)


def new_model() -> Any:
    """A network, drawn from a seed."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=loss, metrics=["accuracy"])
    return model


def train() -> None:
    """The train function: the strategy finds the ranks, deals each batch to them and keeps their models the same."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    checkpoint = turnout.get_checkpoint()
    with strategy.scope():
        model = new_model() if checkpoint is None else ReportCallback.get_model(checkpoint)
    model.fit(
        digits()[0],
        validation_data=digits()[1],
        epochs=EPOCHS,
        initial_epoch=0 if checkpoint is None else ReportCallback.get_initial_epoch(checkpoint),
        callbacks=[ReportCallback()],
        verbose=0,
    )


def train_alone() -> dict[str, float]:
    """The same in Keras alone: what it logs of the last epoch."""
    train_set, held_out = digits()
    history = new_model().fit(train_set, validation_data=held_out, epochs=EPOCHS, verbose=0).history
    return {name: values[-1] for name, values in history.items()}


def main() -> None:
    """Train, and show what came of it."""
    metrics = TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit().metrics
    assert metrics is not None
    print("Turnout: loss {loss:.5f}, accuracy {val_accuracy:.4f}".format(**metrics))
    if "--compare" in sys.argv[1:]:
        print("Keras alone: loss {loss:.5f}, accuracy {val_accuracy:.4f}".format(**train_alone()))


if __name__ == "__main__":
    main()
