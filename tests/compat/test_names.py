"""What the names of Ray Train do here: they configure Turnout, and what has no meaning is refused with the reason."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import turnout
from turnout import UnsupportedError
from turnout.compat.ray_train import (
    CheckpointConfig,
    DataConfig,
    FailureConfig,
    NCCLHangError,
    RunConfig,
    ScalingConfig,
    TrainContext,
    get_context,
)
from turnout.compat.ray_train.torch import TorchCheckpoint, TorchTrainer, accelerate, backward, prepare_optimizer
from turnout.compat.ray_train.trainers import DataParallelTrainer
from turnout.compat.ray_train.v2 import RayTrainCallback
from turnout.compat.ray_train.xgboost import XGBoostTrainer

NOTHING: Any = None  # Any: stands for what is refused unread


def nothing() -> None:
    pass


def test_arguments_by_place_are_those_of_ray_train() -> None:
    scaling = ScalingConfig(None, 4, False, {"CPU": 2}, "SPREAD", None, None, False, None, 5.0)
    assert scaling == ScalingConfig(
        num_workers=4,
        resources_per_worker={"CPU": 2},
        placement_strategy="SPREAD",
        elastic_resize_monitor_interval_s=5.0,
    )
    assert CheckpointConfig(3, "loss", "min").checkpoint_score_order == "min"
    assert RunConfig("mine", "/tmp/runs", None, FailureConfig(2)).failure_config == FailureConfig(max_failures=2)


def test_configurations_are_turnouts_and_can_be_replaced_and_pickled() -> None:
    scaling = ScalingConfig(num_workers=2, controller="process")
    assert isinstance(scaling, turnout.ScalingConfig)
    assert dataclasses.replace(scaling, num_workers=0) == ScalingConfig(num_workers=0, controller="process")
    for each in (scaling, RunConfig(name="a"), FailureConfig(1), CheckpointConfig(1), DataConfig(equal=False)):
        assert dataclasses.replace(each) == each
        assert pickle.loads(pickle.dumps(each)) == each


def test_resources_are_counted_as_ray_train_counts_them() -> None:
    scaling = ScalingConfig(num_workers=(1, 3), use_gpu=True, resources_per_worker={"CPU": 2, "disk": 1})
    assert scaling.elasticity_enabled
    assert (scaling.min_workers, scaling.max_workers) == (1, 3)
    assert scaling.total_resources == {"CPU": 6, "disk": 3, "GPU": 3}
    assert (scaling.num_cpus_per_worker, scaling.num_gpus_per_worker, scaling.num_tpus_per_worker) == (2, 1, 0)
    assert scaling.additional_resources_per_worker == {"disk": 1}
    assert ScalingConfig(num_workers=2).total_resources == {"CPU": 2}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ScalingConfig(trainer_resources={"CPU": 1}), "trainer_resources"),
        (lambda: FailureConfig(fail_fast=True), "max_failures=0"),
        (lambda: CheckpointConfig(checkpoint_frequency=2), "the train function decides"),
        (lambda: CheckpointConfig(checkpoint_at_end=True), "the train function decides"),
        (lambda: RunConfig(verbose=1), "belongs to Ray Tune"),
        (lambda: RunConfig(sync_config=None), "belongs to Ray Tune"),
        (lambda: TorchTrainer(nothing, metadata={"a": 1}), "train_loop_config"),
        (lambda: TorchTrainer(nothing, resume_from_checkpoint=turnout.Checkpoint("/tmp")), "resumes a run"),
        (lambda: TorchTrainer.restore("/tmp"), "Build the trainer again"),
        (lambda: DataParallelTrainer.can_restore("/tmp"), "Build the trainer again"),
        (lambda: XGBoostTrainer(nothing, label_column="y"), "call xgboost.train in a train function"),
        (lambda: XGBoostTrainer.get_model(turnout.Checkpoint("/tmp")), "RayTrainReportCallback.get_model"),
        (lambda: TorchCheckpoint("/tmp"), "torch.save"),
        (lambda: TorchCheckpoint.from_state_dict({}), "torch.save"),
        (lambda: accelerate(amp=True), "torch.amp.autocast"),
        (lambda: prepare_optimizer(NOTHING), "torch.amp.autocast"),
        (lambda: backward(NOTHING), "torch.amp.autocast"),
    ],
)
def test_what_ray_train_has_given_up_raises_as_there_with_what_to_do(call: Callable[[], object], said: str) -> None:
    with pytest.raises(DeprecationWarning, match=said) as caught:
        call()
    assert isinstance(caught.value, turnout.TurnoutError)


def test_what_nothing_would_call_is_refused_where_it_is_written() -> None:
    with pytest.raises(UnsupportedError, match=r"Mine\.configure\(\)"):

        class Mine(DataConfig):
            def configure(self, *args: Any, **kwargs: Any) -> None:
                pass

    with pytest.raises(UnsupportedError, match=r"Hooks derives from RayTrainCallback"):

        class Hooks(RayTrainCallback):
            pass

    class Own(turnout.BackendConfig):
        backend_cls = object

    with pytest.raises(UnsupportedError, match="written for Ray Train's worker group"):
        DataParallelTrainer(nothing, backend_config=Own())


def test_a_trainer_shows_what_it_was_given() -> None:
    trainer = TorchTrainer(
        nothing,
        train_loop_config={"lr": 1},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="shown"),
    )
    assert isinstance(trainer, DataParallelTrainer)
    assert trainer.train_loop_per_worker is nothing
    assert trainer.train_loop_config == {"lr": 1}
    assert trainer.scaling_config.num_workers == 0
    assert trainer.run_config.name == "shown"
    assert trainer.run_config.checkpoint_config == CheckpointConfig()
    assert trainer.datasets == {}
    assert trainer.data_config == turnout.DataConfig()
    assert trainer.validation_config is None
    assert type(trainer.backend_config).__name__ == "TorchConfig"


def test_the_context_has_what_ray_train_refuses_with_the_reason() -> None:
    def train() -> list[str]:
        context = get_context()
        assert isinstance(context, TrainContext)
        said = []
        for name in ("get_metadata", "get_trial_name", "get_trial_id", "get_trial_resources", "get_trial_dir"):
            with pytest.raises(DeprecationWarning, match=name) as caught:
                getattr(context, name)()
            said.append(str(caught.value))
        return [context.get_experiment_name(), *said]

    result = DataParallelTrainer(
        train, scaling_config=ScalingConfig(num_workers=0), run_config=RunConfig(name="context")
    ).fit()
    assert result.return_value[0] == "context"
    assert len(set(result.return_value)) == 6


def test_errors_can_be_caught_by_ray_trains_names() -> None:
    assert issubclass(NCCLHangError, turnout.WorkerGroupError)
    assert str(NCCLHangError("hung", {})) == "hung"
