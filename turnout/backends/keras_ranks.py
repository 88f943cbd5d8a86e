"""Lets Keras 3 fit one model on several workers, which fails under `MultiWorkerMirroredStrategy` as Keras stands.

Its `fit` begins with a sum over all workers of a batch that is a tuple, which TensorFlow refuses, and ends each step
with a mean along an axis that a metric has not (https://github.com/keras-team/keras/issues/20585). Neither is needed:
the one is asked for shapes alone, and metrics are summed over the workers when an epoch's are read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from turnout.dependency import imported

__all__ = ["correct_keras"]


def correct_keras() -> Callable[[], None]:
    """Put both right in this process; a Keras that is not what is known here, or has another backend, is left as it is.

    Returns:
        What puts them back.
    """
    import tensorflow as tf

    keras: Any = imported("keras", at_least="3.0", extra="tensorflow", needed_by="TensorflowTrainer")
    if keras.config.backend() != "tensorflow":
        return _nothing
    try:
        trainer: Any = importlib.import_module("keras.src.backend.tensorflow.trainer")  # Any: Keras has no types
        kind = trainer.TensorFlowTrainer
        build, reduce = kind._maybe_symbolic_build, trainer.reduce_per_replica
    except (ImportError, AttributeError):
        return _nothing

    def build_from_own(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """In place of the sum: this worker's own share of a batch has the shapes."""
        strategy = self._distribute_strategy
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            build(self, iterator=iterator, data_batch=data_batch)
            return
        if iterator is not None:
            for _, _, batches in iterator:
                data_batch = keras.tree.map_structure(
                    lambda each: strategy.experimental_local_results(each)[0], next(batches)
                )
                break
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def reduce_to_own(values: Any, strategy: Any, reduction: str) -> Any:
        """In place of the mean: what this worker has seen so far in the epoch."""
        if reduction == "auto" and isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            reduction = "first"
        return reduce(values, strategy, reduction)

    def put_back() -> None:
        kind._maybe_symbolic_build, trainer.reduce_per_replica = build, reduce

    kind._maybe_symbolic_build, trainer.reduce_per_replica = build_from_own, reduce_to_own
    return put_back


def _nothing() -> None:
    """There is nothing to put back."""
