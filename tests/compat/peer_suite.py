"""A test file as users of Ray Train have it; `test_pytest.py` runs it under the switch."""

import os
import tempfile

import pytest
import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def train_func(config):
    model = prepare_model(torch.nn.Linear(2, 1))
    context = ray.train.get_context()
    for epoch in range(config["epochs"]):
        loss = model(torch.ones(4, 2)).sum()
        loss.backward()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if context.get_world_rank() == 0:
                torch.save({"epoch": epoch}, os.path.join(folder, "state.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "world_size": context.get_world_size()}, checkpoint=checkpoint)
    return context.get_world_size()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_trains(num_workers, tmp_path):
    result = TorchTrainer(
        train_func,
        train_loop_config={"epochs": 2},
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(name="suite", storage_path=str(tmp_path)),
    ).fit()
    assert result.metrics["epoch"] == 1
    assert result.metrics["world_size"] == max(num_workers, 1)
    assert result.return_value == max(num_workers, 1)
    with result.checkpoint.as_directory() as folder:
        assert torch.load(os.path.join(folder, "state.pt"))["epoch"] == 1


def test_fails(tmp_path):
    def fail():
        from ray.train import get_context

        raise ValueError(f"of {get_context().get_world_size()}")

    with pytest.raises((ValueError, ray.train.TrainingFailedError), match="of"):
        TorchTrainer(
            fail,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=0)),
        ).fit()


def test_deprecated_arguments_are_errors():
    with pytest.raises(DeprecationWarning):
        ScalingConfig(trainer_resources={"CPU": 1})
    with pytest.raises(DeprecationWarning):
        RunConfig(verbose=2)
    with pytest.raises(DeprecationWarning):
        TorchTrainer(train_func, metadata={"a": 1})
    with pytest.raises(ValueError, match="num_workers"):
        ScalingConfig(num_workers=-1)
