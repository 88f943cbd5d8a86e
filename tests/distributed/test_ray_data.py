"""Ray Data on the Ray track: dealt by the driver, anew for each attempt, and read beside the workers or refused."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import turnout
from tests.distributed.on_ray import is_free
from tests.distributed.ranks import program, wait_until
from tests.distributed.within import rank
from turnout import DataConfig, DataParallelTrainer, FailureConfig, ResourceError, RunConfig, ScalingConfig, UsageError

pytestmark = [
    pytest.mark.usefixtures("cluster", "_no_coordinator_stays"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data's own
]


def processes_of(name: str) -> list[int]:
    """The processes of this machine's cluster that run an actor or a task of this name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(part.startswith("ray::") and name in part for part in process.cmdline()[:1]):
                found.append(process.pid)
    return found


def assert_gone(name: str) -> None:
    """No such process is there any more, or soon none is, and Ray knows it: it ends and counts orphans in its time."""
    wait_until(lambda: not processes_of(name), f"{name} to be gone", 20)
    wait_until(is_free, "what the run had to be free", 20)


@pytest.fixture
def _no_coordinator_stays() -> Iterator[None]:
    yield
    assert_gone("SplitCoordinator")


@pytest.fixture
def data(cluster: None) -> Any:
    """`ray.data`."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data


def fit(train_fn: Callable[..., Any], storage: Path, *, num_workers: int = 2, **arguments: Any) -> turnout.Result:
    return DataParallelTrainer(
        train_fn,
        scaling_config=arguments.pop("scaling_config", None) or ScalingConfig(num_workers, controller="ray"),
        run_config=RunConfig(storage_path=str(storage), failure_config=arguments.pop("failure_config", None)),
        **arguments,
    ).fit()


def rows_of(shard: Any) -> list[int]:
    return [int(x) for batch in shard.iter_batches(batch_size=3) for x in batch["id"]]


def test_a_ray_data_set_is_cut_into_equal_shares_in_every_epoch(data: Any, tmp_path: Path) -> None:
    def train() -> list[list[int]]:
        shard = turnout.get_dataset_shard("train")
        return [rows_of(shard) for _ in range(2)]

    values = fit(train, tmp_path, datasets={"train": data.range(11, override_num_blocks=4)}).return_values
    for epoch in range(2):
        shares = [value[epoch] for value in values]
        assert [len(share) for share in shares] == [5, 5]
        assert len({*shares[0], *shares[1]} & set(range(11))) == 10


def test_without_equal_shares_every_row_is_on_one_rank(data: Any, tmp_path: Path) -> None:
    values = fit(
        lambda: rows_of(turnout.get_dataset_shard()),
        tmp_path,
        datasets={"train": data.range(11, override_num_blocks=4)},
        dataset_config=DataConfig(equal=False, enable_shard_locality=False),
    ).return_values
    assert sorted(values[0] + values[1]) == list(range(11))


def test_a_data_set_that_is_not_cut_is_whole_on_each_rank(data: Any, tmp_path: Path) -> None:
    def train() -> list[Any]:
        shard = turnout.get_dataset_shard("test")
        return [shard.count(), sorted(rows_of(shard)), len(rows_of(turnout.get_dataset_shard("train")))]

    values = fit(
        train,
        tmp_path,
        datasets={"train": data.range(8), "test": data.range(5)},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    ).return_values
    assert values == [[5, [0, 1, 2, 3, 4], 4]] * 2


def test_a_callable_is_called_once_for_an_attempt_by_the_driver_and_what_it_makes_is_cut(
    data: Any, tmp_path: Path
) -> None:
    called: list[int] = []

    def make() -> Any:
        called.append(os.getpid())
        return data.range(8)

    def train() -> list[int]:
        rows = rows_of(turnout.get_dataset_shard())
        if rank() == 1 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise RuntimeError("once")
        return rows

    values = fit(
        train, tmp_path / "runs", datasets={"train": make}, failure_config=FailureConfig(max_failures=1)
    ).return_values
    assert sorted(values[0] + values[1]) == list(range(8))
    assert called == [os.getpid()] * 2


def test_what_a_callable_makes_may_be_whole_on_each_rank(data: Any, tmp_path: Path) -> None:
    def make() -> Any:
        import ray.data

        return ray.data.range(5)

    values = fit(
        lambda: sorted(rows_of(turnout.get_dataset_shard())),
        tmp_path,
        datasets={"train": make},
        dataset_config=DataConfig(datasets_to_split=[]),
    ).return_values
    assert values == [[0, 1, 2, 3, 4]] * 2


def test_a_retry_in_the_middle_of_an_epoch_begins_with_fresh_shares(data: Any, tmp_path: Path) -> None:
    def train() -> list[int]:
        rows: list[int] = []
        for batch in turnout.get_dataset_shard().iter_batches(batch_size=10):
            rows += [int(x) for x in batch["id"]]
            if rank() == 1 and not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise RuntimeError("once")
        return rows

    dataset = data.range(400, override_num_blocks=20)
    values = fit(
        train, tmp_path / "runs", datasets={"train": dataset}, failure_config=FailureConfig(max_failures=1)
    ).return_values
    assert sorted(values[0] + values[1]) == list(range(400))


def test_a_run_that_fails_leaves_no_coordinator_and_no_task(data: Any, tmp_path: Path) -> None:
    def slow(batch: Any) -> Any:
        (tmp_path / "task").touch()
        threading.Event().wait(50)
        return batch

    def train() -> None:
        batches = iter(turnout.get_dataset_shard().iter_batches())
        threading.Thread(target=lambda: next(batches), daemon=True).start()
        wait_until((tmp_path / "task").exists, "a task to run")
        raise LookupError("the cause")

    with pytest.raises(LookupError, match="the cause"):
        fit(
            train,
            tmp_path / "runs",
            num_workers=1,
            datasets={"train": data.range(8).map_batches(slow)},
        )
    assert_gone("MapBatches")


DRIVER = """
    import logging, sys, time
    import ray
    ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
    import ray.data, turnout

    def slow(batch):
        time.sleep(0.1)
        return batch

    def train():
        for number, _ in enumerate(turnout.get_dataset_shard().iter_batches(batch_size=1)):
            if number == 1:
                print("begun", flush=True)

    turnout.DataParallelTrainer(
        train,
        scaling_config=turnout.ScalingConfig(2, controller="ray"),
        run_config=turnout.RunConfig(storage_path="."),
        datasets={"train": ray.data.range(2000, override_num_blocks=1000).map_batches(slow)},
    ).fit()
"""


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGKILL]], ids=["interrupted", "killed"])
def test_a_driver_that_ends_in_the_middle_of_an_epoch_leaves_nothing(
    signals: list[signal.Signals], tmp_path: Path
) -> None:
    import ray

    with program(tmp_path, DRIVER, ray.get_runtime_context().gcs_address) as running:
        running.wait_for("[rank 0] begun", 45)
        for each in signals[:-1]:
            running.process.send_signal(each)
            running.wait_for("interrupt again to kill it now")
        running.process.send_signal(signals[-1])
        running.wait(10)
        for name in ("RankActor", "SplitCoordinator", "MapBatches"):
            assert_gone(name)


def test_an_epoch_that_is_left_early_is_followed_by_a_whole_one(data: Any, tmp_path: Path) -> None:
    def train() -> list[int]:
        shard = turnout.get_dataset_shard()
        next(iter(shard.iter_batches(batch_size=2)))
        return rows_of(shard)

    values = fit(train, tmp_path, datasets={"train": data.range(40, override_num_blocks=4)}).return_values
    assert sorted(values[0] + values[1]) == list(range(40))


def test_a_shard_has_the_methods_of_ray_data(data: Any, tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        shard = turnout.get_dataset_shard()
        kept = shard.materialize()
        with pytest.raises(UsageError, match=r"materialize\(\)\.count\(\)"):
            shard.count()
        return {
            "schema": kept.schema().names,
            "count": kept.count(),
            "rows": sum(row["id"] for row in kept.iter_rows()),
            "pandas": int(shard.to_pandas()["id"].sum()),
            "stats": type(shard.stats()).__name__,
        }

    dataset = data.from_items([{"id": x} for x in range(8)])
    values = fit(train, tmp_path, datasets={"train": dataset}).return_values
    assert [(each["schema"], each["count"], each["stats"]) for each in values] == [(["id"], 4, "str")] * 2
    assert sum(each["rows"] for each in values) == sum(each["pandas"] for each in values) == 28


def test_tensors_are_on_the_device_that_the_rank_trains_on(data: Any, tmp_path: Path) -> None:
    def train() -> list[Any]:
        import torch

        import turnout.torch

        batches = list(turnout.get_dataset_shard().iter_torch_batches(batch_size=3, dtypes=torch.float32))
        assert all(batch["id"].device == turnout.torch.get_device() for batch in batches)
        with pytest.raises(UsageError, match="device='nowhere'"):
            turnout.get_dataset_shard().iter_torch_batches(device="nowhere")
        return [str(batches[0]["id"].dtype), sum(float(batch["id"].sum()) for batch in batches)]

    values = fit(train, tmp_path, datasets={"train": data.range(8)}).return_values
    assert {value[0] for value in values} == {"torch.float32"}
    assert sum(value[1] for value in values) == 28


def test_local_shuffling_is_another_one_in_each_epoch_that_is_set(data: Any, tmp_path: Path) -> None:
    def train() -> list[list[int]]:
        shard = turnout.get_dataset_shard()
        orders = []
        for epoch in (0, 0, 1):
            shard.set_epoch(epoch)
            batches = shard.iter_batches(batch_size=10, local_shuffle_buffer_size=100, local_shuffle_seed=7)
            orders.append([int(x) for batch in batches for x in batch["id"]])
        with pytest.raises(UsageError, match="set_epoch"):
            shard.set_epoch(-1)
        return orders

    dataset = data.from_items([{"id": x} for x in range(50)], override_num_blocks=1)
    first, again, other = fit(train, tmp_path, num_workers=1, datasets={"train": dataset}).return_value
    assert first == again != other
    assert sorted(first) == sorted(other) == list(range(50))


@pytest.mark.parametrize(
    "scaling",
    [ScalingConfig(4, controller="ray"), ScalingConfig(2, controller="ray", resources_per_worker={"CPU": 2})],
    ids=["workers", "resources"],
)
def test_workers_that_leave_no_cpu_for_reading_are_refused_with_what_to_lower(
    scaling: ScalingConfig, data: Any, tmp_path: Path
) -> None:
    with pytest.raises(ResourceError, match=r"datasets\['train'\].*ReadRange.* takes 1 CPU at a time") as caught:
        fit((tmp_path / "entered").touch, tmp_path / "runs", scaling_config=scaling, datasets={"train": data.range(8)})
    assert "leave 0 on any node. Lower ScalingConfig.num_workers or resources_per_worker['CPU']" in str(caught.value)
    assert not (tmp_path / "entered").exists()
    assert_gone("RankActor")


def test_what_was_read_before_needs_no_cpu_beside_the_workers(data: Any, tmp_path: Path) -> None:
    dataset = data.range(8).materialize()
    values = fit(
        lambda: rows_of(turnout.get_dataset_shard()), tmp_path, num_workers=4, datasets={"train": dataset}
    ).return_values
    assert sorted(row for rows in values for row in rows) == list(range(8))


def test_actors_of_a_data_set_that_do_not_fit_beside_the_workers_are_refused(data: Any, tmp_path: Path) -> None:
    class Double:
        def __call__(self, batch: Any) -> Any:
            return {"id": 2 * batch["id"]}

    import ray.data

    dataset = data.range(8).map_batches(Double, compute=ray.data.ActorPoolStrategy(size=3))
    with pytest.raises(ResourceError, match=r"its steps take 3 CPU at least.* leave 2 in the cluster"):
        fit(rank, tmp_path, datasets={"train": dataset})
    assert_gone("RankActor")


def test_execution_options_are_kept_and_the_user_s_data_set_is_not_changed(data: Any, tmp_path: Path) -> None:
    options = data.ExecutionOptions(preserve_order=True)
    dataset = data.range(40, override_num_blocks=8)

    def train() -> list[Any]:
        shard = turnout.get_dataset_shard()
        used = shard.get_context().execution_options
        return [rows_of(shard), used.preserve_order, used.exclude_resources.cpu]

    value = fit(
        train,
        tmp_path,
        num_workers=1,
        datasets={"train": dataset},
        dataset_config=DataConfig(execution_options={"train": options}),
    ).return_value
    assert value == [list(range(40)), True, 1.0]
    assert dataset.context.execution_options.exclude_resources.cpu == 0
    assert options.exclude_resources.cpu == 0
    assert dataset.name is None


def test_options_that_are_none_are_refused(data: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"DataConfig\.execution_options.*takes a ray\.data\.ExecutionOptions"):
        fit(
            rank,
            tmp_path,
            datasets={"train": data.range(4)},
            dataset_config=DataConfig(execution_options={"train": "fast"}),
        )


def test_a_data_set_whose_function_cannot_be_sent_is_named(data: Any, tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(batch: Any) -> Any:
        with lock:
            return batch

    with pytest.raises(UsageError, match=r"datasets\['train'\] cannot be sent to where it is read: .*lock"):
        fit(rank, tmp_path, datasets={"train": data.range(4).map_batches(locked)})
    assert_gone("RankActor")


def test_arrow_data_needs_no_ray_data_on_the_ranks(tmp_path: Path) -> None:
    def train() -> list[Any]:
        return [rows_of(turnout.get_dataset_shard()), "ray.data" in sys.modules]

    values = fit(train, tmp_path, datasets={"train": pa.table({"id": list(range(8))})}).return_values
    assert values == [[[0, 1, 2, 3], False], [[4, 5, 6, 7], False]]


def test_arrow_and_ray_data_are_dealt_side_by_side(data: Any, tmp_path: Path) -> None:
    def train() -> list[list[int]]:
        return [sorted(rows_of(turnout.get_dataset_shard(name))) for name in ("arrow", "made", "ray")]

    table = pa.table({"id": list(range(4))})
    values = fit(train, tmp_path, datasets={"arrow": table, "made": lambda: table, "ray": data.range(8)}).return_values
    assert [value[:2] for value in values] == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]]
    assert sorted(values[0][2] + values[1][2]) == list(range(8))
