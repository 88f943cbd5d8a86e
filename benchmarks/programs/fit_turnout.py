"""The least that a user of Turnout runs: a trivial train function, in this process."""

from turnout import DataParallelTrainer, ScalingConfig


def train_fn() -> None:
    """Do nothing."""


DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0)).fit()
