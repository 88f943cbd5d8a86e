"""The Ray track: the same meaning as on the others, on actors that come and go."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.distributed.on_ray import assert_clean, fit
from tests.distributed.within import rank
from turnout import Checkpoint, FailureConfig, ScalingConfig, UserCallback
from turnout.collective import barrier, broadcast_from_rank_zero
from turnout.torch import TorchConfig, TorchTrainer

pytestmark = pytest.mark.usefixtures("cluster")


def save(value: object) -> Checkpoint:
    folder = tempfile.mkdtemp()
    Path(folder, f"rank_{rank()}").write_text(str(value))
    return Checkpoint.from_directory(folder)


def read(checkpoint: Checkpoint, name: str) -> str:
    with checkpoint.as_directory() as folder:
        return Path(folder, name).read_text()


def test_ranks_report_meet_and_return(tmp_path: Path) -> None:
    def train(config: dict[str, int]) -> int:
        for step in range(config["steps"]):
            turnout.report({"step": step, "rank": rank()}, save(step))
        turnout.report({"step": 99, "rank": rank()})
        barrier()
        return int(broadcast_from_rank_zero(100)) + rank()

    result = fit(train, tmp_path, config={"steps": 3})
    assert result.metrics == {"step": 99, "rank": 0}
    assert result.return_values == [100, 101]
    assert len(result.metrics_dataframe) == 4
    assert result.checkpoint is not None
    assert [read(result.checkpoint, f"rank_{each}") for each in range(2)] == ["2", "2"]


def test_a_rank_knows_who_it_is_and_its_thread_and_variables_say_so(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "TURNOUT_WORKER")
        context = turnout.get_context()
        return {
            "variables": [os.environ[name] for name in names],
            "context": [context.get_world_rank(), context.get_local_rank(), context.get_node_rank()],
            "thread": threading.current_thread().name,
            "folder": os.getcwd(),
            "secret": os.environ.get("A_SECRET"),
            "own": os.environ.get("TURNOUT_OF_MINE"),
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET", "of the driver's")
        patch.setenv("TURNOUT_OF_MINE", "goes along")
        patch.chdir(tmp_path)
        values = fit(train, tmp_path / "runs").return_values
    for number, value in enumerate(values):
        assert value == {
            "variables": [str(number), "2", str(number), "2", "0", "1"],
            "context": [number, number, 0],
            "thread": f"rank {number}",
            "folder": str(tmp_path),
            "secret": None,
            "own": "goes along",
        }


def test_a_rank_does_not_import_what_the_driver_alone_needs(tmp_path: Path) -> None:
    def train() -> list[str]:
        import sys

        turnout.report({"x": 1})
        return sorted(sys.modules)

    drivers = {
        "turnout.runtime.run",
        "turnout.cluster.placement",
        "turnout.controllers.coordinator",
        "turnout.data.shards",
        "turnout.storage.history",
        "turnout.storage.lease",
    }
    (modules,) = fit(train, tmp_path, num_workers=1).return_values
    assert "turnout.storage.commit" in modules
    assert not drivers.intersection(modules)


def test_torch_ranks_share_a_gloo_group(tmp_path: Path) -> None:
    def train() -> float:
        import torch
        import torch.distributed as dist

        total = torch.ones(1) * (rank() + 1)
        dist.all_reduce(total)
        assert dist.get_backend() == "gloo"
        return total.item()

    result = TorchTrainer(
        train,
        torch_config=TorchConfig(timeout_s=30),
        scaling_config=ScalingConfig(num_workers=2, controller="ray"),
        run_config=turnout.RunConfig(storage_path=str(tmp_path)),
    ).fit()
    assert result.return_values == [3.0, 3.0]


def test_a_rank_that_raises_is_retried_from_the_newest_checkpoint_in_the_same_group(tmp_path: Path) -> None:
    import ray
    from ray.util import placement_group_table

    def groups() -> int:
        return sum(each["name"].startswith("turnout-resumed") for each in placement_group_table().values())

    def train() -> tuple[int, str]:
        checkpoint = turnout.get_checkpoint()
        start = 0 if checkpoint is None else int(read(checkpoint, "rank_0")) + 1
        for step in range(start, 4):
            if step == 2 and start == 0 and rank() == 1:
                raise LookupError("once")
            turnout.report({"step": step}, save(step))
        group = ray.util.get_current_placement_group()
        assert group is not None
        return start, group.id.hex()

    result = fit(train, tmp_path, name="resumed", failure_config=FailureConfig(max_failures=1))
    assert [start for start, _ in result.return_values] == [2, 2]
    assert len({group for _, group in result.return_values}) == 1
    assert groups() == 1


def test_an_exception_comes_with_its_class_place_and_rank_and_leaves_nothing(tmp_path: Path) -> None:
    class OwnError(Exception):
        pass

    def train() -> None:
        if rank() == 1:
            raise OwnError("of rank 1")
        barrier()  # waits

    with pytest.raises(OwnError, match="of rank 1") as caught:
        fit(train, tmp_path)
    assert isinstance(caught.value, turnout.WorkerGroupError)
    assert next(iter(caught.value.worker_failures)) == 1
    assert any("raised on rank 1 in attempt 0" in note for note in caught.value.__notes__)
    assert_clean()


def test_a_rank_in_the_middle_of_a_computation_is_told_when_another_has_failed(tmp_path: Path) -> None:
    def train() -> None:
        barrier()
        if rank() == 1:
            raise LookupError("the cause")
        try:
            while True:
                sum(range(1000))
        finally:
            (tmp_path / "unwound").touch()

    with pytest.raises(LookupError, match="the cause"):
        fit(train, tmp_path / "runs")
    assert (tmp_path / "unwound").exists()


def test_callbacks_run_in_the_driver(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watch(UserCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            seen.append((os.getpid(), metrics))

    def train() -> None:
        turnout.report({"rank": rank()})

    fit(train, tmp_path, callbacks=[Watch()])
    assert seen == [(os.getpid(), [{"rank": 0}, {"rank": 1}])]


def test_what_a_rank_registers_for_its_end_runs_there(tmp_path: Path) -> None:
    def train() -> None:
        import atexit

        atexit.register((tmp_path / f"ended_{rank()}").touch)

    fit(train, tmp_path / "runs")
    assert sorted(each.name for each in tmp_path.glob("ended_*")) == ["ended_0", "ended_1"]
