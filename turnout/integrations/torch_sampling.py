"""How a torch data loader is dealt to ranks: a copy of it, whose sampler gives one rank its share.

Every rank draws the same order of the whole data, for which nothing but the seed and the epoch count, and takes every
n-th of it. So ranks need not talk while they read, and the shares are disjoint and of one size. That holds only for
samplers which draw from nothing but what they are made of and a generator: torch's own. Others are refused, and their
users told what to do.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from turnout.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

__all__ = ["DealtSampler", "dealt"]

LoaderT = TypeVar("LoaderT", bound="DataLoader[Any]")

_INSTEAD = (
    "Deal the data to ranks yourself, by get_context().get_world_rank() and get_world_size(), "
    "and pass add_dist_sampler=False"
)


class DealtSampler:
    """One rank's share of what a sampler of torch's draws, each epoch anew.

    It has the attributes of `torch.utils.data.DistributedSampler`, which takes its place where the sampler draws each
    row once.

    Args:
        sampler: a sampler that draws from its ``generator`` alone; it is not changed.
        num_replicas: how many ranks share it.
        rank: whose share this is.
        seed: of the order in the first epoch; the same on every rank.
        drop_last: leave out the last rows, fewer than ranks, and not repeat the first to make the shares equal.
    """

    def __init__(self, sampler: Any, *, num_replicas: int, rank: int, seed: int, drop_last: bool) -> None:
        # Any: torch's samplers that have a generator share no class that says so
        self.sampler = sampler
        self.num_replicas = num_replicas
        self.rank = rank
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    def __len__(self) -> int:
        num_drawn = len(self.sampler)
        return num_drawn // self.num_replicas if self.drop_last else math.ceil(num_drawn / self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        import torch

        sampler = copy.copy(self.sampler)
        sampler.generator = torch.Generator()
        sampler.generator.manual_seed(self.seed + self.epoch)
        drawn = list(sampler)
        total = len(self) * self.num_replicas
        while len(drawn) < total:
            drawn += drawn[: total - len(drawn)]
        return iter(drawn[self.rank : total : self.num_replicas])

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch from here on."""
        self.epoch = epoch


def dealt(loader: LoaderT, *, num_replicas: int, rank: int, agreed: Callable[[int], int]) -> LoaderT:
    """A loader like ``loader`` that reads one rank's share, or the loader itself where it is dealt to ranks already.

    Args:
        loader: the user's, which is not changed.
        num_replicas: how many ranks share the data.
        rank: whose share is read.
        agreed: returns rank 0's number on every rank; called only where the user's generator decides the order.

    Raises:
        UsageError: nothing but the user's own code can deal it; the text says why and what to do.
    """
    if _is_dealt(loader):
        return loader
    _require_dealable(loader)
    batch_sampler = loader.batch_sampler
    # A plain BatchSampler of the user's own says all that batch_size and drop_last would have said.
    is_users_batches = loader.batch_size is None and batch_sampler is not None
    order = batch_sampler.sampler if is_users_batches else loader.sampler  # type: ignore[union-attr]  # checked above
    drop_last = bool(batch_sampler.drop_last if is_users_batches else loader.drop_last)  # type: ignore[union-attr]
    sampler = _share_of(order, num_replicas, rank, drop_last, agreed)
    return _with_sampler(loader, sampler, is_users_batches)


def _is_dealt(loader: DataLoader[Any]) -> bool:
    """Whether a sampler of the loader's knows of ranks, by the attribute that torch's has and others took from it."""
    batch_sampler = loader.batch_sampler
    samplers = (loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    return any(hasattr(each, "num_replicas") for each in samplers)


def _require_dealable(loader: DataLoader[Any]) -> None:
    from torch.utils.data import BatchSampler, IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            f"prepare_data_loader(): the dataset, a {_name(loader.dataset)}, is iterable and has no rows to deal: each "
            f"rank would read all of it. {_INSTEAD}; see to it that all ranks get equally many batches"
        )
    batch_sampler = loader.batch_sampler
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        raise UsageError(
            f"prepare_data_loader(): the batch sampler, a {_name(batch_sampler)}, alone knows which rows make a batch, "
            f"and whether it would draw the same on every rank. {_INSTEAD}"
        )
    held = {id(each) for each in (loader.sampler, batch_sampler) if each is not None}
    for name, value in vars(loader).items():
        if id(value) in held and name not in ("sampler", "batch_sampler"):
            raise UsageError(
                f"prepare_data_loader(): the loader, a {_name(loader)}, keeps its sampler as {name!r} too, so that one "
                f"cannot be put in its place. {_INSTEAD}"
            )


def _share_of(
    sampler: Any, num_replicas: int, rank: int, drop_last: bool, agreed: Callable[[int], int]
) -> Any:  # Any: torch's samplers share no class that says what they are made of
    from torch.utils.data import (
        DistributedSampler,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    kind = type(sampler)  # not isinstance: what a subclass draws, and from where, is its own affair
    if kind not in (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler):
        raise UsageError(
            f"prepare_data_loader(): the sampler, a {_name(sampler)}, is not torch's own, and alone knows whether it "
            f"would draw the same on every rank. {_INSTEAD}"
        )
    generator = getattr(sampler, "generator", None)
    seed = 0 if generator is None else agreed(_drawn_from(generator))
    if kind is SequentialSampler or (kind is RandomSampler and _draws_each_row_once(sampler)):
        rows = sampler.data_source
        if not hasattr(rows, "__len__"):
            raise UsageError(
                f"prepare_data_loader(): the dataset, a {_name(rows)}, has no __len__, and what has no end cannot be "
                f"dealt. {_INSTEAD}"
            )
        shuffle = kind is RandomSampler
        return DistributedSampler(rows, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
    return DealtSampler(sampler, num_replicas=num_replicas, rank=rank, seed=seed, drop_last=drop_last)


def _draws_each_row_once(sampler: Any) -> bool:  # Any: a RandomSampler
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def _drawn_from(generator: torch.Generator) -> int:
    """The number that the user's generator would give next; it is not moved on."""
    import torch

    twin = torch.Generator(generator.device)
    twin.set_state(generator.get_state())
    return int(torch.empty((), dtype=torch.int64, device=twin.device).random_(generator=twin)) // 2  # room for epochs


def _with_sampler(loader: LoaderT, sampler: Any, is_users_batches: bool) -> LoaderT:  # Any: as `_share_of` returns
    """A copy of the loader with another sampler.

    It is copied and not built anew: so a subclass keeps its class and what it has of its own, and no argument can be
    forgotten, of this version of torch or another.
    """
    from torch.utils.data import BatchSampler

    parts: dict[str, Any] = {"_iterator": None}  # the processes of persistent workers stay with the loader they serve
    if not is_users_batches:
        parts["sampler"] = sampler
    old = loader.batch_sampler
    if old is not None:
        parts["batch_sampler"] = BatchSampler(sampler, old.batch_size, old.drop_last)  # type: ignore[attr-defined]
    try:
        clone = copy.copy(loader)
        for name, value in parts.items():
            object.__setattr__(clone, name, value)  # a loader that is built refuses these by its own means
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"prepare_data_loader(): the loader, a {_name(loader)}, cannot be copied with another sampler ({error}). "
            f"{_INSTEAD}"
        ) from error
    return clone


def _name(value: object) -> str:
    return type(value).__name__
