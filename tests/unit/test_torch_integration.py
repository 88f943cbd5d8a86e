"""`turnout.integrations.torch` at world size 1, on real models and loaders.

The meta device stands for an accelerator: tensors that were moved there can be told from those that were not.
"""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

import turnout.integrations.torch as integration
from turnout.errors import UsageError
from turnout.integrations.torch import (
    enable_reproducibility,
    get_device,
    get_devices,
    prepare_data_loader,
    prepare_model,
)
from turnout.session import LocalTrainFnUtils, activated
from turnout.session.checkpoints import InMemoryCheckpoints
from turnout.session.events import RankInfo, WorkerEvent
from turnout.session.outbox import Outbox

META = torch.device("meta")


class OneWorker:
    """The channel of a worker that is alone, and whose reports nobody reads."""

    ranks = RankInfo()
    notice = None

    def publish(self, event: WorkerEvent) -> None:
        pass

    def exchange(self, tag: str, value: Any, how: str, event: object = None) -> Any:
        return value

    def branch(self, name: str) -> Self:
        return self


@pytest.fixture
def run() -> Iterator[None]:
    """A run of one worker is active, as it is inside a train function."""
    utils = LocalTrainFnUtils(run_name="run", outbox=Outbox(OneWorker()), checkpoints=InMemoryCheckpoints())
    with activated(utils):
        yield


@pytest.fixture
def on_meta(run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """This worker's device is the meta device."""
    monkeypatch.setattr(integration, "get_device", lambda: META)


class Point(NamedTuple):
    x: Any
    label: Any


class Numbers(Dataset[torch.Tensor]):
    """0, 1, 2, ... as tensors."""

    def __init__(self, size: int = 6) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


class Stream(IterableDataset[torch.Tensor]):
    """The same, without an index or a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(float(number)) for number in range(6))


def as_points(items: list[torch.Tensor]) -> Point:
    return Point(torch.stack(items), ["text"] * len(items))


def as_none(items: list[torch.Tensor]) -> None:
    return None


# Devices


def test_the_device_is_the_cpu_where_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert get_device() == torch.device("cpu")
    assert get_devices() == [torch.device("cpu")]


def test_the_device_is_the_current_one_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert get_device() == torch.device("cuda:2")
    assert get_devices() == [torch.device("cuda:2")]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (get_device, {}),
        (get_devices, {}),
        (enable_reproducibility, {"seed": 0}),
        (
            prepare_model,
            {
                "model": inspect.Parameter.empty,
                "move_to_device": True,
                "parallel_strategy": "ddp",
                "parallel_strategy_kwargs": None,
            },
        ),
        (
            prepare_data_loader,
            {
                "data_loader": inspect.Parameter.empty,
                "add_dist_sampler": True,
                "move_to_device": True,
                "auto_transfer": True,
            },
        ),
    ],
)
def test_the_arguments_and_their_order_are_those_of_ray_train(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    parameters = inspect.signature(function).parameters
    assert [(name, each.default) for name, each in parameters.items()] == list(arguments.items())


# prepare_model


def test_at_world_size_one_the_prepared_model_is_the_bare_model(run: None) -> None:
    model = torch.nn.Linear(2, 1)
    assert prepare_model(model) is model


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp2", None])
def test_every_strategy_leaves_the_model_bare_at_world_size_one(run: None, strategy: Any) -> None:
    model = torch.nn.Linear(2, 1)
    assert prepare_model(model, parallel_strategy=strategy) is model


@pytest.mark.parametrize("strategy", ["DDP", "ddpp", "deepspeed", "", 1, True])
def test_an_unknown_strategy_is_refused_at_world_size_one_too(run: None, strategy: Any) -> None:
    with pytest.raises(UsageError, match=r"parallel_strategy=.*'ddp', 'fsdp', 'fsdp2'"):
        prepare_model(torch.nn.Linear(2, 1), parallel_strategy=strategy)


def test_the_model_is_moved_to_the_workers_device(on_meta: None) -> None:
    model = prepare_model(torch.nn.Linear(2, 1))
    assert {each.device for each in model.parameters()} == {META}


def test_the_model_is_moved_to_the_device_that_is_given(run: None) -> None:
    model = prepare_model(torch.nn.Linear(2, 1), move_to_device=META)
    assert {each.device for each in model.parameters()} == {META}


def test_the_model_stays_where_it_is_when_it_is_not_to_be_moved(on_meta: None) -> None:
    model = prepare_model(torch.nn.Linear(2, 1), move_to_device=False)
    assert {each.device.type for each in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(("device", "made_current"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_a_cuda_device_that_is_given_becomes_the_current_one(
    run: None, monkeypatch: pytest.MonkeyPatch, device: str, made_current: list[str]
) -> None:
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda each: current.append(str(each)))
    monkeypatch.setattr(torch.nn.Linear, "to", lambda self, device: self)
    prepare_model(torch.nn.Linear(2, 1), move_to_device=torch.device(device))
    assert current == made_current


@pytest.mark.parametrize("value", ["cuda:0", None, 0])
def test_a_move_that_is_neither_yes_nor_no_nor_a_device_is_refused(run: None, value: Any) -> None:
    with pytest.raises(UsageError, match=r"prepare_model\(\): move_to_device=.*torch.device"):
        prepare_model(torch.nn.Linear(2, 1), move_to_device=value)


def test_what_is_no_module_is_refused_as_a_model(run: None) -> None:
    with pytest.raises(UsageError, match=r"model is a function, and takes a torch\.nn\.Module"):
        prepare_model(lambda x: x)  # type: ignore[arg-type]  # the mistake under test


def test_strategy_arguments_that_are_no_dict_of_names_are_refused(run: None) -> None:
    with pytest.raises(UsageError, match="parallel_strategy_kwargs"):
        prepare_model(torch.nn.Linear(2, 1), parallel_strategy_kwargs=["find_unused_parameters"])  # type: ignore[arg-type]


def test_strategy_arguments_without_a_strategy_are_warned_of(run: None, caplog: pytest.LogCaptureFixture) -> None:
    kwargs = {"find_unused_parameters": True}
    with caplog.at_level(logging.WARNING):
        prepare_model(torch.nn.Linear(2, 1), parallel_strategy_kwargs=kwargs)
        assert caplog.messages == []
        prepare_model(torch.nn.Linear(2, 1), parallel_strategy=None, parallel_strategy_kwargs=kwargs)
    assert len(caplog.messages) == 1
    assert "find_unused_parameters" in caplog.messages[0]


@pytest.mark.parametrize(
    ("strategy", "name", "taken"),
    [
        ("ddp", "find_unused_parameter", "find_unused_parameters"),
        ("ddp", "module", "device_ids"),
        ("fsdp", "reshard_after_forward", "sharding_strategy"),
        ("fsdp2", "sharding_strategy", "reshard_after_forward"),
    ],
)
def test_an_argument_that_the_strategy_does_not_take_is_refused_with_those_it_does(
    run: None, strategy: str, name: str, taken: str
) -> None:
    with pytest.raises(UsageError, match=rf"parallel_strategy_kwargs has '{name}', .* it takes .*{taken}"):
        prepare_model(torch.nn.Linear(2, 1), parallel_strategy=strategy, parallel_strategy_kwargs={name: None})
    prepare_model(torch.nn.Linear(2, 1), parallel_strategy=strategy, parallel_strategy_kwargs={taken: None})


def test_a_model_and_a_loader_are_prepared_only_inside_a_run() -> None:
    with pytest.raises(UsageError, match="no run is active"):
        prepare_model(torch.nn.Linear(2, 1))
    with pytest.raises(UsageError, match="no run is active"):
        prepare_data_loader(DataLoader(Numbers()))


# prepare_data_loader: what it returns


@pytest.mark.parametrize("move_to_device", [True, False])
def test_a_loop_written_for_several_workers_runs_at_world_size_one(run: None, move_to_device: bool) -> None:
    features, labels = torch.randn(8, 3), torch.randint(0, 2, (8,))
    loader = DataLoader(TensorDataset(features, labels), batch_size=4, shuffle=True)
    model = prepare_model(torch.nn.Linear(3, 2))
    loader = prepare_data_loader(loader, move_to_device=move_to_device)
    num_batches = 0
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # what is returned adds it
        for x, y in loader:
            torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch's own
            num_batches += 1
    assert num_batches == 4


def test_on_the_cpu_iterating_gives_the_loaders_own_iterator(run: None) -> None:
    loader = DataLoader(Numbers(), batch_size=2)
    assert type(iter(prepare_data_loader(loader))) is type(iter(loader))


def test_the_prepared_loader_answers_as_the_users_loader(run: None) -> None:
    dataset = Numbers(7)
    loader = DataLoader(dataset, batch_size=2, drop_last=True, collate_fn=as_points, generator=torch.Generator())
    prepared = prepare_data_loader(loader)
    assert isinstance(prepared, DataLoader)
    assert prepared.dataset is dataset
    assert len(prepared) == 3
    for name in ("batch_size", "drop_last", "collate_fn", "generator", "num_workers", "batch_sampler", "pin_memory"):
        assert getattr(prepared, name) is getattr(loader, name)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = prepared.no_such_attribute  # type: ignore[attr-defined]  # the mistake under test


def test_the_methods_of_a_loaders_subclass_are_reached_and_its_class_is_told(run: None) -> None:
    class Resumable(DataLoader[torch.Tensor]):
        def state_dict(self) -> dict[str, int]:
            return {"position": 3}

    prepared = prepare_data_loader(Resumable(Numbers()))
    assert isinstance(prepared, Resumable)
    assert prepared.state_dict() == {"position": 3}


def test_an_attribute_that_is_set_reaches_the_users_loader(run: None) -> None:
    loader = DataLoader(Numbers(), batch_size=2)
    prepared = prepare_data_loader(loader)
    prepared.collate_fn = as_points
    assert loader.collate_fn is as_points
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        prepared.batch_size = 3


def test_the_users_loader_is_not_changed(on_meta: None) -> None:
    loader = DataLoader(Numbers(), batch_size=2, shuffle=True)
    before = dict(vars(loader))
    list(prepare_data_loader(loader))
    assert vars(loader) == before
    assert {batch.device.type for batch in loader} == {"cpu"}
    assert not hasattr(loader.sampler, "set_epoch")


def test_the_prepared_loader_copies_and_pickles(on_meta: None) -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(), batch_size=2, shuffle=True))
    for other in (copy.copy(prepared), copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert type(other) is type(prepared)
        other.sampler.set_epoch(1)  # type: ignore[attr-defined]  # what is returned adds it
        assert [batch.device for batch in other] == [META] * 3


def test_the_prepared_loader_says_what_it_does(on_meta: None) -> None:
    text = repr(prepare_data_loader(DataLoader(Numbers())))
    assert text.startswith("PreparedDataLoader(<torch.utils.data.dataloader.DataLoader object at ")
    assert text.endswith(", device=meta, prefetch=True)")


def test_a_loader_that_is_prepared_twice_works_as_one_prepared_once(on_meta: None) -> None:
    prepared = prepare_data_loader(prepare_data_loader(DataLoader(Numbers(), batch_size=2)))
    prepared.sampler.set_epoch(1)  # type: ignore[attr-defined]  # what is returned adds it
    assert [batch.device for batch in prepared] == [META] * 3


@pytest.mark.parametrize("value", [[torch.ones(1)], Numbers(), iter(()), None])
def test_what_is_no_data_loader_is_refused(run: None, value: Any) -> None:
    with pytest.raises(UsageError, match=f"data_loader is a {type(value).__name__}.*torch.utils.data.DataLoader"):
        prepare_data_loader(value)


@pytest.mark.parametrize("name", ["add_dist_sampler", "move_to_device", "auto_transfer"])
def test_a_flag_of_the_loader_that_is_neither_yes_nor_no_is_refused(run: None, name: str) -> None:
    with pytest.raises(UsageError, match=rf"prepare_data_loader\(\): {name}=.*True or False"):
        prepare_data_loader(DataLoader(Numbers()), **{name: META})  # type: ignore[arg-type]  # the mistake under test


# prepare_data_loader: samplers


@pytest.mark.parametrize(("shuffle", "kind"), [(True, RandomSampler), (False, SequentialSampler)])
def test_a_sampler_without_set_epoch_gets_one_that_does_nothing(run: None, shuffle: bool, kind: type[Any]) -> None:
    loader = DataLoader(Numbers(), shuffle=shuffle)
    sampler = prepare_data_loader(loader).sampler
    sampler.set_epoch(3)  # type: ignore[attr-defined]  # what is returned adds it
    assert isinstance(sampler, kind)
    assert len(sampler) == 6
    assert sorted(sampler) == list(range(6))
    assert sampler.data_source is loader.dataset


def test_a_sampler_with_set_epoch_is_the_users_own(run: None) -> None:
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(Numbers(), num_replicas=1, rank=0, shuffle=True)
    prepared = prepare_data_loader(DataLoader(Numbers(), sampler=sampler))
    assert prepared.sampler is sampler
    orders = set()
    for epoch in range(3):
        prepared.sampler.set_epoch(epoch)
        orders.add(tuple(batch.item() for batch in prepared))
    assert len(orders) > 1


class EpochBatchSampler(BatchSampler):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_batch_sampler_with_set_epoch_hears_of_the_epoch_and_is_kept(run: None) -> None:
    batch_sampler = EpochBatchSampler(SequentialSampler(Numbers()), 2, False)
    prepared = prepare_data_loader(DataLoader(Numbers(), batch_sampler=batch_sampler))
    prepared.sampler.set_epoch(4)  # type: ignore[attr-defined]  # what is returned adds it
    assert batch_sampler.epoch == 4
    assert prepared.batch_sampler is batch_sampler
    assert [batch.tolist() for batch in prepared] == [[0, 1], [2, 3], [4, 5]]


def test_a_sampler_within_a_batch_sampler_hears_of_the_epoch(run: None) -> None:
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(Numbers(), num_replicas=1, rank=0)
    batch_sampler = BatchSampler(sampler, 2, False)  # type: ignore[arg-type]  # torch types its items, not its indices
    prepared = prepare_data_loader(DataLoader(Numbers(), batch_sampler=batch_sampler))
    prepared.sampler.set_epoch(4)  # type: ignore[attr-defined]  # what is returned adds it
    assert sampler.epoch == 4


def test_a_loader_over_an_iterable_dataset_works(on_meta: None) -> None:
    prepared = prepare_data_loader(DataLoader(Stream(), batch_size=4))
    prepared.sampler.set_epoch(1)  # type: ignore[attr-defined]  # what is returned adds it
    assert [(tuple(batch.shape), batch.device) for batch in prepared] == [((4,), META), ((2,), META)]
    with pytest.raises(TypeError, match="has no len"):
        len(prepared)


def test_a_loader_that_does_not_batch_works(on_meta: None) -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(), batch_size=None))
    assert [batch.device for batch in prepared] == [META] * 6
    assert len(prepared) == 6


# prepare_data_loader: worker processes


def test_iterating_twice_gives_the_data_twice(on_meta: None) -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(), batch_size=2))
    assert len(list(prepared)) == len(list(prepared)) == 3


def test_two_iterations_at_once_do_not_disturb_each_other(on_meta: None) -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(), batch_size=2))
    assert len(list(zip(prepared, prepared, strict=True))) == 3


@pytest.mark.parametrize("fixture", ["run", "on_meta"])
def test_an_early_break_leaves_no_thread_and_no_process(request: pytest.FixtureRequest, fixture: str) -> None:
    request.getfixturevalue(fixture)
    threads = set(threading.enumerate())
    prepared = prepare_data_loader(DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork"))
    for _ in prepared:
        break
    gc.collect()
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=30)  # torch tells its queue's thread to end, and does not wait for it
    assert set(threading.enumerate()) <= threads
    assert multiprocessing.active_children() == []


def test_persistent_workers_live_on_from_one_epoch_to_the_next(on_meta: None) -> None:
    loader = DataLoader(
        Numbers(),
        batch_size=2,
        num_workers=1,
        persistent_workers=True,
        prefetch_factor=3,
        multiprocessing_context="fork",
    )
    prepared = prepare_data_loader(loader)
    pids = []
    for _ in range(2):
        assert [batch.device for batch in prepared] == [META] * 3
        pids.append([child.pid for child in multiprocessing.active_children()])
    assert pids[0] == pids[1]
    assert len(pids[0]) == 1
    assert (prepared.prefetch_factor, prepared.persistent_workers) == (3, True)
    del prepared, loader
    gc.collect()
    assert multiprocessing.active_children() == []


# prepare_data_loader: kinds of batches


@pytest.mark.parametrize("num_workers", [0, 1])
def test_named_tuples_stay_named_tuples_and_text_stays_text(on_meta: None, num_workers: int) -> None:
    context = "fork" if num_workers else None
    loader = DataLoader(
        Numbers(), batch_size=3, collate_fn=as_points, num_workers=num_workers, multiprocessing_context=context
    )
    batches = list(prepare_data_loader(loader))
    assert [type(batch) for batch in batches] == [Point, Point]
    assert [batch.x.device for batch in batches] == [META, META]
    assert [batch.label for batch in batches] == [["text"] * 3] * 2


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("fixture", ["run", "on_meta"])
def test_a_batch_of_none_passes_and_does_not_end_the_epoch(
    request: pytest.FixtureRequest, fixture: str, num_workers: int
) -> None:
    request.getfixturevalue(fixture)
    context = "fork" if num_workers else None
    loader = DataLoader(
        Numbers(), batch_size=2, collate_fn=as_none, num_workers=num_workers, multiprocessing_context=context
    )
    assert list(prepare_data_loader(loader)) == [None, None, None]


def test_an_error_of_the_dataset_comes_as_it_is(on_meta: None) -> None:
    class Faulty(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 1:
                raise LookupError("row 1 is broken")
            return super().__getitem__(index)

    batches = iter(prepare_data_loader(DataLoader(Faulty())))
    assert next(batches).device == META
    with pytest.raises(LookupError, match="row 1 is broken"):
        next(batches)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("auto_transfer", [True, False])
def test_on_a_real_cuda_device_the_batches_arrive_whole(run: None, auto_transfer: bool) -> None:
    loader = DataLoader(TensorDataset(torch.arange(100_000.0)), batch_size=10_000, pin_memory=True)
    batches = [batch for (batch,) in prepare_data_loader(loader, auto_transfer=auto_transfer)]
    assert {batch.device for batch in batches} == {get_device()}
    assert torch.equal(torch.cat(batches).cpu(), torch.arange(100_000.0))
