"""The least that a user of Ray Train runs: a trivial train function, in this process (its local mode)."""

from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train_fn() -> None:
    """Do nothing."""


DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0)).fit()
