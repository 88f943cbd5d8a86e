"""TensorFlow: ranks that train one Keras model as one process does, failures beside its collectives, and its rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.distributed.ranks import ROOT, line_of, text_of
from tests.distributed.within import rank
from turnout import FailureConfig, RunConfig, ScalingConfig, UsageError
from turnout.backends.base import backend_for
from turnout.backends.tensorflow import TensorflowBackend
from turnout.config import BackendConfig
from turnout.controllers.process import client
from turnout.tensorflow import TensorflowConfig, TensorflowTrainer
from turnout.testing.torchrun import run_under_torchrun

EPOCHS = 4
METRICS = ("loss", "accuracy", "val_loss")


@pytest.fixture(autouse=True, scope="module")
def _no_server_of_tensorflow_stays() -> Iterator[None]:
    yield
    client.close_idle_servers()


def fit(
    train: Callable[..., Any], storage: Path, *, num_workers: int = 2, controller: str = "process", **run: Any
) -> turnout.Result:
    return TensorflowTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=num_workers, controller=controller),
        run_config=RunConfig(storage_path=str(storage), **run),
    ).fit()


def model_and_data() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What both the ranks and Keras alone train: functions that make the model, and the data in batches of 8 rows."""

    def new_model() -> Any:
        import keras

        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
        return model

    def data() -> Any:
        import numpy as np
        import tensorflow as tf

        rows = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((rows, (rows[:, 0] * rows[:, 1] > 0).astype("int32"))).batch(8)

    return new_model, data


def fitting(kill_in: int | None = None, first_kill: Path | None = None) -> Callable[[], dict[str, Any]]:
    """A train function that fits with the strategy of several workers, from the newest checkpoint on.

    Args:
        kill_in: the epoch in which rank 1 is killed, while rank 0 is in a collective.
        first_kill: exists once it was.
    """
    new_model, data = model_and_data()

    def train() -> dict[str, Any]:
        import keras
        import tensorflow as tf

        from turnout.tensorflow import ReportCallback

        class Killer(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.epoch = epoch

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if (self.epoch, batch) == (kill_in, 3) and first_kill is not None and not first_kill.exists():
                    first_kill.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        checkpoint, initial_epoch = turnout.get_checkpoint(), 0
        with strategy.scope():
            model = new_model() if checkpoint is None else ReportCallback.get_model(checkpoint)
        if checkpoint is not None:
            initial_epoch = ReportCallback.get_initial_epoch(checkpoint)
        callbacks = [ReportCallback(), *([Killer()] if rank() == 1 else [])]
        model.fit(
            data(), validation_data=data(), epochs=EPOCHS, initial_epoch=initial_epoch, callbacks=callbacks, verbose=0
        )
        weights = [each.numpy().tolist() for each in model.weights]
        return {
            "replicas": strategy.num_replicas_in_sync,
            "begun": initial_epoch,
            "weights": weights,
            "task": json.loads(os.environ["TF_CONFIG"])["task"],
        }

    return train


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """What Keras logs of the same by itself, in a process that has imported TensorFlow already."""
    new_model, data = model_and_data()

    def train() -> dict[str, list[float]]:
        fitted = new_model().fit(data(), validation_data=data(), epochs=EPOCHS, verbose=0)
        history: dict[str, list[float]] = fitted.history
        return history

    value: dict[str, list[float]] = fit(train, tmp_path_factory.mktemp("alone"), num_workers=1).return_value
    return value


def assert_as_alone(result: turnout.Result, alone: dict[str, list[float]]) -> None:
    for name in METRICS:
        assert result.metrics_dataframe[name].tolist() == pytest.approx(alone[name], rel=1e-4), name
    first, second = result.return_values
    assert first["weights"] == second["weights"]
    assert [each["replicas"] for each in (first, second)] == [2, 2]
    assert [each["task"] for each in (first, second)] == [{"type": "worker", "index": index} for index in range(2)]


@pytest.mark.timeout(150)  # each of them imports TensorFlow anew
def test_the_ranks_of_torchrun_train_as_one_process_does(alone: dict[str, list[float]], tmp_path: Path) -> None:
    train = fitting()

    def program() -> tuple[dict[str, Any], dict[str, Any]]:
        run_config = RunConfig(name="run", storage_path=str(tmp_path))
        result = TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=0), run_config=run_config).fit()
        assert result.metrics is not None
        return result.return_value, result.metrics

    (first, metrics), (second, _) = run_under_torchrun(program, world_size=2)
    assert {name: metrics[name] for name in METRICS} == pytest.approx({name: alone[name][-1] for name in METRICS}, 1e-4)
    assert first["weights"] == second["weights"]
    assert [each["replicas"] for each in (first, second)] == [2, 2]


def test_two_ranks_train_as_one_process_does_and_resume_as_if_none_had_been_killed(
    alone: dict[str, list[float]], tmp_path: Path
) -> None:
    train = fitting(kill_in=2, first_kill=tmp_path / "killed")
    result = fit(train, tmp_path / "runs", failure_config=FailureConfig(max_failures=1))
    assert (tmp_path / "killed").exists()
    assert_as_alone(result, alone)
    assert [each["begun"] for each in result.return_values] == [2, 2]
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        assert sorted(os.listdir(folder)) == [".turnout.json", "model.keras", "progress.json"], "rank 0's alone"


@pytest.mark.on_ray
def test_ranks_on_ray_train_as_one_process_does(alone: dict[str, list[float]], tmp_path: Path) -> None:
    assert_as_alone(fit(fitting(), tmp_path, controller="ray"), alone)


def test_a_rank_that_raises_while_the_other_trains_comes_first(tmp_path: Path) -> None:
    new_model, data = model_and_data()

    def train() -> None:
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = new_model()
        if rank() == 0:  # on which TensorFlow has the ranks meet
            (tmp_path / "at").touch()
            raise ValueError("real cause")  # raises
        try:
            model.fit(data(), verbose=0)
        except tf.errors.OpError:  # whose class would have the test's process import TensorFlow
            raise RuntimeError("TensorFlow has lost a rank") from None

    with pytest.raises(turnout.WorkerGroupError) as caught:
        fit(train, tmp_path / "runs")
    assert time.time() - (tmp_path / "at").stat().st_mtime < 8
    assert isinstance(caught.value, ValueError)
    assert f"on rank 0, {line_of(train, 'raises')} in train:" in text_of(caught.value)
    assert next(iter(caught.value.worker_failures)) == 0


def run(program: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_face_imports_tensorflow_only_when_it_is_used_and_in_process_nothing_is_set() -> None:
    program = """
import os, sys
before = dict(os.environ)
from turnout import ScalingConfig
import turnout.tensorflow
def train():
    return "tensorflow" in sys.modules, os.environ == before
trainer = turnout.tensorflow.TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=0))
print(trainer.fit().return_value, *(name for name in ("torch", "jax", "keras", "ray") if name in sys.modules))
"""
    assert run(program) == "(False, True)\n"


def test_a_tensorflow_or_keras_that_is_missing_or_too_old_is_told_with_the_line_that_installs_it() -> None:
    program = """
import sys
from turnout import MissingDependencyError
from turnout.backends.base import backend_for
from turnout.backends.tensorflow import TensorflowBackend, TensorflowConfig
from turnout.session.collective import SoloCollective
from turnout.session.events import RankInfo
class Old:
    __version__ = "2.9.1"
for module in (None, Old):
    sys.modules["tensorflow"] = sys.modules["keras"] = module
    try:
        TensorflowBackend(TensorflowConfig()).start(RankInfo(), SoloCollective())
    except MissingDependencyError as error:
        print(error)
    try:
        from turnout.tensorflow import ReportCallback
    except MissingDependencyError as error:
        print(error)
"""
    install, upgrade = "pip install 'turnout[tensorflow]'", "pip install --upgrade 'turnout[tensorflow]'"
    assert run(program).splitlines() == [
        f"TensorflowTrainer needs the package 'tensorflow', which is not installed. Install it with: {install}",
        f"ReportCallback needs the package 'keras', which is not installed. Install it with: {install}",
        f"TensorflowTrainer needs tensorflow 2.16 or newer, and 2.9.1 is installed. Install it with: {upgrade}",
        f"ReportCallback needs keras 3.0 or newer, and 2.9.1 is installed. Install it with: {upgrade}",
    ]


def test_a_configuration_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match=r"tensorflow_config=.*TensorflowConfig"):
        TensorflowBackend(BackendConfig())
    assert type(backend_for(TensorflowConfig())) is TensorflowBackend


def test_a_shard_is_not_dealt_once_more(tmp_path: Path) -> None:
    def train() -> list[int]:
        import tensorflow as tf

        from turnout.tensorflow import prepare_dataset_shard

        with pytest.raises(UsageError, match=r"takes a tf\.data\.Dataset"):
            prepare_dataset_shard([1, 2])
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        own = tf.data.Dataset.from_tensor_slices([[10 * rank() + each] for each in range(4)]).batch(2)
        dealt = strategy.experimental_distribute_dataset(prepare_dataset_shard(own))
        batches = (strategy.experimental_local_results(batch)[0] for batch in dealt)
        return [int(row) for batch in batches for row in batch.numpy().ravel()]

    assert fit(train, tmp_path).return_values == [[0, 1, 2, 3], [10, 11, 12, 13]]
