"""Ends by force on the Ray track, and runs beside and inside each other: the cluster is left as it was."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import turnout
from tests.distributed.on_ray import assert_clean, fit, is_clean, ranks_alive
from tests.distributed.ranks import Program, program, wait_until
from tests.distributed.test_process_interrupts import interrupt, leaves_well
from tests.distributed.within import rank
from turnout import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, ValidationConfig

pytestmark = pytest.mark.usefixtures("cluster")

DRIVER = """
    import logging, os, signal, sys, tempfile, threading, time
    import ray
    ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
    import turnout
    from turnout import Checkpoint, CheckpointUploadMode, DataParallelTrainer, RunConfig, ScalingConfig
    from turnout.collective import barrier

    rank = lambda: turnout.get_context().get_world_rank()

    def begin():
        barrier()
        print("begun", flush=True)

    def fit(train, num_workers=2, **run):
        before, threads = signal.getsignal(signal.SIGINT), set(threading.enumerate())
        try:
            DataParallelTrainer(
                train,
                scaling_config=ScalingConfig(num_workers, controller="ray"),
                run_config=RunConfig(name="run", storage_path=".", **run),
            ).fit()
        except BaseException as error:
            print("LEFT", type(error).__name__, flush=True)
        print("handlers are back:", signal.getsignal(signal.SIGINT) == before)
        print("threads:", [each.name for each in threading.enumerate()
              if each not in threads or each.name == "MainThread"])
        print("over", flush=True)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    """Makes a driver of its own, on the shared cluster."""
    import ray

    address = ray.get_runtime_context().gcs_address

    def make(source: str, **options: Any) -> Any:
        return program(tmp_path, DRIVER + source, address, **options)

    return make


def begun(driver: Program) -> None:
    driver.wait_for("[rank 0] begun", 40)
    driver.wait_for("[rank 1] begun", 40)


def test_one_interrupt_stops_all_ranks_at_the_same_report_and_drains_uploads(driver: Any, tmp_path: Path) -> None:
    source = """
    def train():
        step = 0
        begin()
        try:
            while True:
                with tempfile.TemporaryDirectory() as folder:
                    open(f"{folder}/{rank()}", "w").write(str(step))
                    mode = CheckpointUploadMode.ASYNC
                    turnout.report({"step": step}, Checkpoint.from_directory(folder), checkpoint_upload_mode=mode)
                step += 1
        except KeyboardInterrupt:
            print("stopped at", step, flush=True)
            raise

    fit(train)
    """
    with driver(source) as running:
        begun(running)
        running.wait_for("reported {'step': 3}")
        interrupt(running)
        leaves_well(running)
    stops = {line.partition("stopped at ")[2] for line in running.text.splitlines() if "stopped at" in line}
    assert len(stops) == 1, running.text
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert newest.name == f"checkpoint_{int(stops.pop()) - 1:06d}"


@pytest.mark.parametrize("stays", ["sum(range(10**12))", "time.sleep(1000)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_second_interrupt_kills_whatever_ranks_do(stays: str, driver: Any) -> None:
    with driver(
        f"\n    def train():\n        begin()\n        time.sleep(0.2)\n        {stays}\n\n    fit(train)\n"
    ) as running:
        begun(running)
        interrupt(running)
        running.wait_for("interrupt again to kill it now")
        started = time.monotonic()
        interrupt(running)
        running.wait_for("over")
        assert time.monotonic() - started < 2
        assert not ranks_alive()
        leaves_well(running)


def test_an_interrupt_while_workers_are_waited_for_leaves_fit(driver: Any) -> None:
    with driver("\n    fit(begin, num_workers=5, on_existing='overwrite')\n") as running:
        running.wait_for("trains on 5 workers", 40)
        time.sleep(0.5)
        interrupt(running)
        leaves_well(running)


def test_a_driver_that_is_killed_leaves_the_cluster_clean_and_its_run_goes_on(driver: Any, tmp_path: Path) -> None:
    source = """
    import subprocess

    def train():
        begin()
        subprocess.Popen(["sleep", "1000"])
        for step in range(10**9):
            with tempfile.TemporaryDirectory() as folder:
                open(f"{folder}/{rank()}", "w").write(str(step))
                turnout.report({"step": step}, Checkpoint.from_directory(folder))

    fit(train)
    """
    with driver(source) as running:
        begun(running)
        running.wait_for("reported {'step': 3}")
        assert len(ranks_alive()) == 2
        running.process.kill()
        wait_until(is_clean, "the cluster to be clean", 10)

    def train() -> int:
        checkpoint = turnout.get_checkpoint()
        assert checkpoint is not None
        with checkpoint.as_directory() as folder:
            return int(Path(folder, "0").read_text())

    first, second = fit(train, tmp_path, name="run").return_values
    assert first == second >= 3


def test_a_stopped_rank_ends_with_its_driver_too(driver: Any) -> None:
    source = """
    def train():
        begin()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGSTOP)

    fit(train)
    """
    with driver(source) as running:
        begun(running)
        time.sleep(1)
        running.process.kill()
        wait_until(is_clean, "the cluster to be clean", 10)


def test_two_fits_at_once_do_not_meet(tmp_path: Path) -> None:
    from turnout.torch import TorchTrainer

    def train(config: int) -> float:
        import torch
        import torch.distributed as dist

        total = torch.ones(1) * config
        for _ in range(20):
            dist.all_reduce(total, op=dist.ReduceOp.MAX)
            turnout.report({"total": total.item()})
        return total.item()

    values: dict[int, list[float]] = {}

    def run(number: int) -> None:
        values[number] = (
            TorchTrainer(
                train,
                train_loop_config=number,
                scaling_config=ScalingConfig(2, controller="ray"),
                run_config=RunConfig(storage_path=str(tmp_path)),
            )
            .fit()
            .return_values
        )

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {1: [1.0, 1.0], 2: [2.0, 2.0]}


def inner(storage: str) -> list[int]:
    return DataParallelTrainer(
        rank, scaling_config=ScalingConfig(2, controller="ray"), run_config=RunConfig(storage_path=storage)
    ).fit().return_values  # fmt: skip


class Host:
    def fit(self, storage: str) -> list[int]:
        return inner(storage)

    def pid(self) -> int:
        return os.getpid()


def test_fit_works_inside_of_a_ray_task_and_of_an_actor(tmp_path: Path) -> None:
    import ray

    task: Any = ray.remote(inner)
    actor: Any = ray.remote(Host)
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    options: dict[str, Any] = {"num_cpus": 1, "runtime_env": {"env_vars": environment}}
    assert ray.get(task.options(**options).remote(str(tmp_path))) == [0, 1]
    host = actor.options(**options).remote()
    assert ray.get(host.fit.remote(str(tmp_path))) == [0, 1]
    pid = ray.get(host.pid.remote())
    ray.kill(host)
    wait_until(lambda: not psutil.pid_exists(pid), "Ray to end the actor")


def test_fit_inside_of_a_placement_group_that_captures_its_tasks_takes_one_of_its_own(tmp_path: Path) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}])
    task: Any = ray.remote(inner)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ref = task.options(num_cpus=1, scheduling_strategy=strategy, runtime_env={"env_vars": environment}).remote(
        str(tmp_path)
    )
    assert ray.get(ref) == [0, 1]
    remove_placement_group(group)


def aborting(then: Callable[[Any], None]) -> Any:
    """A run whose controller is handed to ``then`` once the train function runs."""
    from turnout.controllers.ray.controller import RayController

    class Aborted(RayController):
        def run_attempt(self, worker: Any, sink: Any) -> Any:
            def take(event: Any) -> None:
                if type(event).__name__ == "Reported":
                    then(self)
                sink(event)

            return super().run_attempt(worker, take)

    return Aborted


def test_an_aborted_run_ends_every_rank(tmp_path: Path) -> None:
    from turnout.controllers import registry

    registry.register("ray-aborted", aborting(lambda controller: controller.abort("enough", 0.5)))

    def train() -> None:
        turnout.report({"step": 0})
        if rank() == 0:
            time.sleep(1000)
        turnout.report({"step": 1})

    try:
        with pytest.raises(turnout.TrainingFailedError, match=r"the run was aborted: enough|was killed by the driver"):
            fit(train, tmp_path, scaling_config=ScalingConfig(2, controller="ray-aborted"))
    finally:
        del registry._registered["ray-aborted"]
    assert_clean()


def test_a_checkpoint_is_validated_in_an_actor_beside_training(tmp_path: Path) -> None:
    def validate(checkpoint: Checkpoint, factor: int) -> dict[str, Any]:
        with checkpoint.as_directory() as folder:
            return {"score": factor * int(Path(folder, "step").read_text())}

    def train() -> None:
        import tempfile

        for step in range(2):
            folder = tempfile.mkdtemp()
            Path(folder, "step").write_text(str(step + 1))
            task = turnout.ValidationTaskConfig(fn_kwargs={"factor": 10})
            turnout.report({"step": step}, Checkpoint.from_directory(folder), validation=task)

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(2, controller="ray", resources_per_worker={"CPU": 2}),
        run_config=RunConfig(storage_path=str(tmp_path)),
        validation_config=ValidationConfig(validate, ray_remote_kwargs={"num_cpus": 1}),
    ).fit()
    assert result.best_checkpoints is not None
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [10, 20]


def test_nothing_of_many_runs_in_a_row_is_left(tmp_path: Path) -> None:
    for _ in range(5):
        assert fit(rank, tmp_path, num_workers=1).return_values == [0]
    assert_clean()
