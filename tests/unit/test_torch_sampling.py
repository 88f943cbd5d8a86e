"""How a loader is dealt to ranks: which rows each gets, what of the loader stays, and what is refused."""

from __future__ import annotations

import copy
import gc
import math
import multiprocessing
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from turnout.errors import UsageError
from turnout.integrations.torch_sampling import DealtSampler, dealt


class Numbers(Dataset[int]):
    """0, 1, 2, ..."""

    def __init__(self, size: int = 12) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(11, -1, -1))


class Halves(RandomSampler):
    """A subclass of torch's, that draws what it likes."""


class OwnBatches(BatchSampler):
    """A subclass of torch's, that batches as it likes."""


def alike(seed: int) -> int:
    """All ranks have the same generator, so that there is nothing to agree on."""
    return seed


def shares(loader: DataLoader[Any], num_replicas: int = 2) -> list[DataLoader[Any]]:
    return [dealt(loader, num_replicas=num_replicas, rank=rank, agreed=alike) for rank in range(num_replicas)]


def rows(loader: DataLoader[Any]) -> list[int]:
    return [int(row) for batch in loader for row in torch.as_tensor(batch).flatten()]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Which rows


@given(
    size=st.integers(0, 40),
    num_replicas=st.integers(1, 5),
    batch_size=st.integers(1, 7),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_rank_gets_equally_many_rows_and_together_they_get_all(
    size: int, num_replicas: int, batch_size: int, shuffle: bool, drop_last: bool
) -> None:
    order: Sampler[int] | None = SubsetRandomSampler(range(size)) if shuffle else None
    loader = DataLoader(Numbers(size), batch_size=batch_size, sampler=order, drop_last=drop_last)
    parts = [list(part.sampler) for part in shares(loader, num_replicas)]
    together = [row for part in parts for row in part]
    assert len({len(part) for part in parts}) == 1
    if drop_last:
        assert len(set(together)) == len(together) == size - size % num_replicas
    else:
        assert set(together) == set(range(size))
        assert len(together) == math.ceil(size / num_replicas) * num_replicas


def test_data_in_order_is_dealt_in_order_so_that_one_step_sees_what_one_process_would_see() -> None:
    loader = DataLoader(Numbers(), batch_size=2)
    first, second = shares(loader)
    assert [batch.tolist() for batch in first] == [[0, 2], [4, 6], [8, 10]]
    assert [batch.tolist() for batch in second] == [[1, 3], [5, 7], [9, 11]]


def test_shuffled_data_is_shuffled_and_each_epoch_that_is_told_anew() -> None:
    first, second = shares(DataLoader(Numbers(), batch_size=2, shuffle=True))
    orders = []
    for epoch in range(2):
        for part in (first, second):
            part.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # a DistributedSampler
        orders.append((rows(first), rows(second)))
        assert sorted(rows(first) + rows(second)) == list(range(12))
        assert orders[epoch] == (rows(first), rows(second))
    assert orders[0] != orders[1]
    assert rows(first) != sorted(rows(first))


def test_the_users_generator_decides_the_order_and_is_not_moved_on() -> None:
    def order(generator: torch.Generator | None) -> list[int]:
        # The sampler's order, since iterating a loader draws the seeds of its workers from the generator too.
        return list(shares(DataLoader(Numbers(100), shuffle=True, generator=generator))[0].sampler)

    generator = seeded(1)
    before = generator.get_state()
    assert order(generator) == order(generator) == order(seeded(1)) != order(seeded(2))
    assert torch.equal(generator.get_state(), before)
    moved_on = seeded(1)
    torch.rand(1, generator=moved_on)
    assert order(moved_on) != order(generator)
    assert order(None) == order(None) != order(generator)


def test_the_order_is_rank_zeros_where_the_ranks_generators_differ() -> None:
    told = []
    parts = []
    for rank in range(2):

        def agreed(seed: int) -> int:
            told.append(seed)
            return told[0]

        loader = DataLoader(Numbers(), shuffle=True, generator=seeded(rank))
        parts.append(rows(dealt(loader, num_replicas=2, rank=rank, agreed=agreed)))
    assert sorted(parts[0] + parts[1]) == list(range(12))
    assert told[0] != told[1]


def test_without_a_generator_the_ranks_need_not_meet() -> None:
    def never(seed: int) -> int:
        raise AssertionError(seed)

    for shuffle in (True, False):
        dealt(DataLoader(Numbers(), shuffle=shuffle), num_replicas=2, rank=0, agreed=never)
    dealt(DataLoader(Numbers(), generator=seeded(1)), num_replicas=2, rank=0, agreed=never)


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler([3, 5, 7, 9, 11]),
        SubsetRandomSampler([3, 5, 7, 9, 11], generator=seeded(3)),
        WeightedRandomSampler([0.0, 1.0, 2.0, 3.0], 5),
        RandomSampler(Numbers(), replacement=True, num_samples=5),
        RandomSampler(Numbers(), num_samples=5),
        RandomSampler(Numbers(2), num_samples=5),
    ],
    ids=["subset", "subset with generator", "weighted", "replacement", "fewer", "more"],
)
def test_what_a_sampler_of_torch_draws_is_shared_out(sampler: Any) -> None:
    first, second = (part.sampler for part in shares(DataLoader(Numbers(), sampler=sampler)))
    assert isinstance(first, DealtSampler)
    assert isinstance(second, DealtSampler)
    assert list(first) == list(first)
    assert len(first) == len(second) == len(list(first)) == len(list(second)) == 3

    drawn = copy.copy(sampler)
    drawn.generator = seeded(first.seed)
    alone = list(drawn)
    together = [row for pair in zip(first, second, strict=True) for row in pair]
    assert together == [*alone, alone[0]]

    first.set_epoch(1)
    drawn.generator = seeded(first.seed + 1)
    assert list(first) == list(drawn)[0::2]


def test_a_random_sampler_over_other_rows_than_the_data_sets_is_followed() -> None:
    first, second = shares(DataLoader(Numbers(), sampler=RandomSampler(range(6))))
    assert sorted(rows(first) + rows(second)) == list(range(6))


def test_a_plain_batch_sampler_batches_each_ranks_share() -> None:
    loader = DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(Numbers()), 4, True))
    first, second = shares(loader)
    assert [batch.tolist() for batch in first] == [[0, 2, 4, 6]]
    assert [batch.tolist() for batch in second] == [[1, 3, 5, 7]]
    assert (first.batch_size, len(first)) == (None, 1)


def test_a_loader_that_does_not_batch_is_dealt_row_by_row() -> None:
    first, _ = shares(DataLoader(Numbers(), batch_size=None))
    assert list(first) == [0, 2, 4, 6, 8, 10]


# What stays


def test_all_that_the_loader_was_given_stays_and_the_loader_is_not_changed() -> None:
    loader: DataLoader[int] = DataLoader(
        Numbers(),
        batch_size=3,
        shuffle=True,
        num_workers=1,
        collate_fn=sum,
        pin_memory=False,
        drop_last=True,
        timeout=30,
        worker_init_fn=print,
        multiprocessing_context="fork",
        generator=seeded(1),
        prefetch_factor=3,
        persistent_workers=True,
        in_order=False,
    )
    before = dict(vars(loader))
    part = shares(loader)[0]
    assert vars(loader) == before
    for name in set(before) - {"sampler", "batch_sampler"}:
        assert vars(part)[name] is before[name]
    assert isinstance(part.sampler, DistributedSampler)
    assert isinstance(part.batch_sampler, BatchSampler)
    assert part.batch_sampler.sampler is part.sampler
    assert (part.sampler.shuffle, part.sampler.drop_last, part.batch_size, part.drop_last) == (True, True, 3, True)
    assert (len(loader), len(part)) == (4, 2)


def test_persistent_workers_of_the_users_loader_stay_with_it() -> None:
    loader = DataLoader(Numbers(), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    assert rows(loader) == list(range(12))
    first, _ = shares(loader)
    assert rows(first) == [0, 2, 4, 6, 8, 10]
    assert rows(loader) == list(range(12))
    del loader, first, _
    gc.collect()
    assert multiprocessing.active_children() == []


def test_a_subclass_keeps_its_class_and_what_it_has_of_its_own() -> None:
    class Named(DataLoader[int]):
        def __init__(self, name: str) -> None:
            super().__init__(Numbers(), batch_size=2)
            self.name = name

    part = shares(Named("train"))[0]
    assert isinstance(part, Named)
    assert part.name == "train"
    assert rows(part) == [0, 2, 4, 6, 8, 10]


def test_a_dealt_sampler_pickles() -> None:
    sampler = shares(DataLoader(Numbers(), sampler=SubsetRandomSampler(range(12))))[0].sampler
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


@pytest.mark.parametrize("is_batched", [True, False])
def test_a_sampler_that_deals_already_is_left(is_batched: bool) -> None:
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False)
    if is_batched:
        batches = BatchSampler(sampler, 2, False)
        loader = DataLoader(Numbers(), batch_sampler=batches)
    else:
        loader = DataLoader(Numbers(), sampler=sampler)
    assert all(part is loader for part in shares(loader))


def test_a_batch_sampler_that_deals_already_is_left() -> None:
    class Dealing(OwnBatches):
        num_replicas = 2

    loader = DataLoader(Numbers(), batch_sampler=Dealing(SequentialSampler(Numbers()), 2, False))
    assert all(part is loader for part in shares(loader))


# What is refused


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Stream()), r"the dataset, a Stream, is iterable and has no rows to deal.*equally many batches"),
        (DataLoader(Endless()), r"Endless, has no __len__"),
        (DataLoader(Numbers(), sampler=Backwards()), r"the sampler, a Backwards, is not torch's own"),
        (DataLoader(Numbers(), sampler=[3, 1, 2]), r"the sampler, a list, is not torch's own"),
        (DataLoader(Numbers(), sampler=Halves(Numbers())), r"the sampler, a Halves, is not torch's own"),
        (
            DataLoader(Numbers(), batch_sampler=OwnBatches(SequentialSampler(Numbers()), 2, False)),
            r"the batch sampler, a OwnBatches, alone knows which rows make a batch",
        ),
        (DataLoader(Numbers(), batch_sampler=[[0, 1], [2]]), r"the batch sampler, a list, alone knows"),
        (
            DataLoader(Numbers(), batch_sampler=BatchSampler(Backwards(), 2, False)),
            r"the sampler, a Backwards, is not torch's own",
        ),
    ],
    ids=["iterable", "endless", "own sampler", "list", "subclass", "own batches", "list of batches", "own in batches"],
)
def test_what_only_its_author_could_deal_is_refused_with_the_reason_and_what_to_do(
    loader: DataLoader[Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=rf"prepare_data_loader\(\): .*{reason}") as caught:
        shares(loader)
    assert "get_world_rank() and get_world_size(), and pass add_dist_sampler=False" in str(caught.value)


def test_a_subclass_that_keeps_its_sampler_elsewhere_too_is_refused() -> None:
    class Keeping(DataLoader[int]):
        def __init__(self) -> None:
            super().__init__(Numbers())
            self.order = self.sampler

    with pytest.raises(UsageError, match="a Keeping, keeps its sampler as 'order' too"):
        shares(Keeping())


def test_a_subclass_that_cannot_be_copied_is_refused() -> None:
    class Single(DataLoader[int]):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("there is only one of me")

    with pytest.raises(UsageError, match=r"a Single, cannot be copied .*only one of me"):
        shares(Single(Numbers()))
