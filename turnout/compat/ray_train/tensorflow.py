"""The names of `ray.train.tensorflow`."""

from __future__ import annotations

from turnout.compat.ray_train.checkpoints import FrameworkCheckpoint
from turnout.compat.ray_train.trainers import DataParallelTrainer
from turnout.tensorflow import TensorflowConfig, prepare_dataset_shard
from turnout.trainer import tensorflow as trainer

__all__ = ["TensorflowCheckpoint", "TensorflowConfig", "TensorflowTrainer", "prepare_dataset_shard"]


class TensorflowTrainer(trainer.TensorflowTrainer, DataParallelTrainer):
    """`turnout.tensorflow.TensorflowTrainer`, which refuses what Ray Train's does."""


class TensorflowCheckpoint(FrameworkCheckpoint):
    """Refused: save the model into a folder, and report ``Checkpoint.from_directory(folder)``."""

    __slots__ = ()

    saved = "model.save(...)"
