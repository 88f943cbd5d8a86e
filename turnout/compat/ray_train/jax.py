"""The names of `ray.train.v2.jax`."""

from turnout.compat.ray_train.trainers import DataParallelTrainer
from turnout.jax import JaxConfig
from turnout.trainer import jax as trainer

__all__ = ["JaxConfig", "JaxTrainer"]


class JaxTrainer(trainer.JaxTrainer, DataParallelTrainer):
    """`turnout.jax.JaxTrainer`, which refuses what Ray Train's does."""
