"""`turnout.torch` on two real ranks: one group, one model, two shares of the data, and no hang when a rank fails.

The train functions run in processes of their own, so each launch answers several tests.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from examples.digits import digits
from turnout import DataParallelTrainer, RunConfig, ScalingConfig, get_context
from turnout.backends.torch import TorchBackend
from turnout.errors import UsageError, WorkerGroupError
from turnout.session import active
from turnout.session.events import RankInfo
from turnout.torch import TorchConfig, TorchTrainer, get_device, prepare_data_loader, prepare_model

STRATEGIES = ("ddp", "fsdp", "fsdp2")


def run(
    train_fn: Callable[..., Any],
    folder: Path,
    *,
    num_workers: int = 2,
    trainer: type[DataParallelTrainer] = TorchTrainer,
) -> list[Any]:
    """What each rank returned."""
    scaling = ScalingConfig(num_workers=num_workers, controller="process" if num_workers else None)
    return_values = (
        trainer(train_fn, scaling_config=scaling, run_config=RunConfig(storage_path=str(folder))).fit().return_values
    )
    assert isinstance(return_values, list)
    return return_values


# One model


def train_in_every_way() -> dict[str, Any]:
    """Trains the digits network from one seed by each strategy, and bare, on what a step of one process would see."""
    world_size = get_context().get_world_size()
    weights = {}
    for strategy in STRATEGIES:
        torch.manual_seed(0)
        bare = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        model = prepare_model(bare, parallel_strategy=strategy)
        loader = prepare_data_loader(DataLoader(digits()[0], batch_size=64 // world_size, drop_last=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
        weights[strategy] = whole_weights(model)
    return weights


def whole_weights(model: nn.Module) -> list[Any]:
    """All weights as arrays, in order, whatever they are sharded by; every rank calls this."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model):
            return [each.detach().clone().numpy() for each in model.state_dict().values()]
    values = model.state_dict().values()
    return [(each.full_tensor() if isinstance(each, DTensor) else each).numpy() for each in values]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The weights after an epoch of one process, and those that each of two ranks has."""
    folder = tmp_path_factory.mktemp("trained")
    return run(train_in_every_way, folder, num_workers=0)[0], run(train_in_every_way, folder)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_learn_the_weights_that_one_process_learns(
    trained: tuple[dict[str, Any], list[dict[str, Any]]], strategy: str
) -> None:
    alone, together = trained
    for weights in together:
        for one, two in zip(alone[strategy], weights[strategy], strict=True):
            assert abs(one - two).max() < 1e-6


# One group, two shares


class Numbers(Dataset[int]):
    """0, 1, 2, ..., 11."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(12))


def look_around() -> dict[str, Any]:
    """What a train function finds of its group, its models and its loaders."""
    rank = get_context().get_world_rank()
    found: dict[str, Any] = {
        "group": (dist.get_rank(), dist.get_world_size(), dist.get_backend()),
        "address": (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]),
        "num_threads": torch.get_num_threads(),
    }
    summed = torch.tensor(float(rank + 1))
    dist.all_reduce(summed)
    found["summed"] = summed.item()

    frozen = nn.Linear(2, 2).requires_grad_(False)
    wrapped = prepare_model(nn.Linear(2, 2), parallel_strategy_kwargs={"find_unused_parameters": True})
    found["kwargs"] = wrapped.find_unused_parameters
    found["bare"] = [prepare_model(frozen) is frozen, prepare_model(frozen, parallel_strategy=None) is frozen]
    found["device"] = get_device().type

    rows = Numbers()
    # The ranks' generators differ, which must not make their shares overlap.
    loader = DataLoader(rows, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(rank))
    prepared = prepare_data_loader(loader)
    found["epochs"] = []
    for epoch in range(2):
        prepared.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # what is returned adds it
        found["epochs"].append(torch.cat(list(prepared)).tolist())
    found["sampler"] = type(prepared.sampler).__name__
    found["answers"] = (len(prepared), prepared.batch_size, prepared.dataset is rows)
    found["prepared twice"] = torch.cat(list(prepare_data_loader(prepared))).tolist()
    found["dealt afterwards"] = torch.cat(
        list(prepare_data_loader(prepare_data_loader(DataLoader(rows), add_dist_sampler=False)))
    ).tolist()
    found["not dealt"] = len(prepare_data_loader(loader, add_dist_sampler=False))
    found["own sampler"] = type(prepare_data_loader(loader, add_dist_sampler=False).sampler) is RandomSampler
    with pytest.raises(UsageError, match="a Stream, is iterable"):
        prepare_data_loader(DataLoader(Stream()))
    found["stream"] = len(list(prepare_data_loader(DataLoader(Stream()), add_dist_sampler=False)))
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    return run(look_around, tmp_path_factory.mktemp("found"))


def test_the_ranks_are_one_group_over_gloo_that_libraries_find_in_the_environment(found: list[dict[str, Any]]) -> None:
    assert [each["group"] for each in found] == [(0, 2, "gloo"), (1, 2, "gloo")]
    assert [each["summed"] for each in found] == [3.0, 3.0]
    assert found[0]["address"] == found[1]["address"]
    assert found[0]["address"][0] == "127.0.0.1"


def test_two_ranks_share_the_cores(found: list[dict[str, Any]]) -> None:
    num_cores = len(os.sched_getaffinity(0))
    assert [each["num_threads"] for each in found] == [max(1, num_cores // 2)] * 2


def test_arguments_reach_the_wrapper_and_a_model_with_nothing_to_train_is_left_bare(
    found: list[dict[str, Any]],
) -> None:
    assert [(each["kwargs"], each["bare"]) for each in found] == [(True, [True, True])] * 2


def test_each_rank_reads_its_share_in_an_order_that_rank_zeros_generator_decides(found: list[dict[str, Any]]) -> None:
    first, second = (each["epochs"] for each in found)
    for epoch in range(2):
        assert sorted(first[epoch] + second[epoch]) == list(range(12))
    assert first[0] != first[1]
    assert [each["answers"] for each in found] == [(2, 3, True)] * 2
    assert {each["sampler"] for each in found} == {"DistributedSampler"}


def test_a_loader_is_dealt_once_and_only_if_it_shall_be(found: list[dict[str, Any]]) -> None:
    assert [each["prepared twice"] for each in found] == [each["epochs"][1] for each in found]
    assert [each["dealt afterwards"] for each in found] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    assert [(each["not dealt"], each["stream"]) for each in found] == [(4, 12), (4, 12)]


def meet_as_if_on_two_nodes() -> dict[str, Any]:
    """Joins a group as a rank does that is alone on its node, at no address that a controller would have named."""
    rank = get_context().get_world_rank()
    assert "MASTER_ADDR" not in os.environ
    backend = TorchBackend(TorchConfig())
    backend.start(RankInfo(rank, 2, 0, 1, rank), active().collective)
    summed = torch.tensor(float(rank + 1))
    dist.all_reduce(summed)
    found = {"summed": summed.item(), "address": os.environ["MASTER_ADDR"]}
    backend.stop(None)
    return found


def test_ranks_on_several_nodes_find_rank_zero_without_being_told_where(tmp_path: Path) -> None:
    first, second = run(meet_as_if_on_two_nodes, tmp_path, trainer=DataParallelTrainer)
    assert first == second
    assert first["summed"] == 3.0
    assert first["address"]


# What goes wrong


def prepare_without_a_group() -> None:
    prepare_model(nn.Linear(2, 2))


def test_several_ranks_without_a_process_group_are_told_of_the_torch_trainer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no process group.*turnout\.torch\.TorchTrainer"):
        run(prepare_without_a_group, tmp_path, trainer=DataParallelTrainer)


def raise_with_an_operation_under_way() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1), async_op=True)  # which rank 0 never joins
        raise LookupError("of the user's")
    dist.recv(torch.ones(1), src=1)


def test_an_error_of_one_rank_ends_the_run_though_operations_are_under_way(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(LookupError, match="of the user's"):
        run(raise_with_an_operation_under_way, tmp_path)
    assert time.monotonic() - began < 30


def die_in_an_operation() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def test_the_death_of_one_rank_ends_the_run_while_another_waits_for_it(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerGroupError, match="rank 1"):
        run(die_in_an_operation, tmp_path)
    assert time.monotonic() - began < 30


def test_a_rank_that_returns_at_once_does_not_take_the_store_from_those_who_still_join(tmp_path: Path) -> None:
    def return_at_once() -> int:  # within the test, so that ranks need not import its module
        return get_context().get_world_rank()

    for _ in range(12):  # without a meeting after joining, one run in ten failed
        assert run(return_at_once, tmp_path, num_workers=3) == [0, 1, 2]
