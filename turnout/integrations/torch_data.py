"""How batches of a torch data loader reach a device: moved one by one, or on CUDA copied one batch ahead.

The loader is neither rebuilt nor changed. `PreparedDataLoader` stands before it, passes everything on, and adds
two things: a ``sampler`` with ``set_epoch``, and batches on the device. Where the device is the CPU, iterating gives
the loader's own iterator, so that nothing is paid for per batch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

__all__ = ["PreparedDataLoader", "moved", "unprepared"]

_END = object()


class _Transparent:
    """Stands before another object: what is not defined here is read, set and asked of that.

    It also names that object's class as its own, which `isinstance` believes: code that asks for a `DataLoader` or a
    `RandomSampler` gets the answer that it got before.
    """

    __slots__ = ("_behind",)

    def __init__(self, behind: Any) -> None:  # Any: whatever the subclass stands before
        object.__setattr__(self, "_behind", behind)

    @property  # type: ignore[misc]  # object's can be set as well; nobody gives these another class
    def __class__(self) -> type[Any]:  # Any: the user's own class
        return type(self._behind)

    def __getattr__(self, name: str) -> Any:  # Any: the user's own attributes
        return getattr(self._behind, name)

    def __setattr__(self, name: str, value: Any) -> None:  # Any: the user's own attributes
        setattr(self._behind, name, value)

    def __len__(self) -> int:
        return len(self._behind)

    def __iter__(self) -> Iterator[Any]:  # Any: what the user's own object gives
        return iter(self._behind)


class PreparedDataLoader(_Transparent):
    """A data loader whose batches arrive on a device, and whose sampler has ``set_epoch``.

    Args:
        loader: the user's.
        device: where batches go; None leaves them where the loader puts them.
        prefetch: copy one batch ahead, where the device is a CUDA device.
    """

    __slots__ = ("_device", "_prefetch", "_sampler")

    def __init__(self, loader: DataLoader[Any], device: torch.device | None, prefetch: bool) -> None:
        super().__init__(loader)
        object.__setattr__(self, "_device", device)
        object.__setattr__(self, "_prefetch", prefetch)
        object.__setattr__(self, "_sampler", _with_set_epoch(loader))

    @property
    def sampler(self) -> Any:  # Any: the user's own, or one that stands before it
        """The loader's sampler, with ``set_epoch`` in any case."""
        return self._sampler

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        if self._device is None or self._device.type == "cpu":
            return batches
        if self._prefetch and self._device.type == "cuda":
            return _prefetched(batches, self._device)
        return map(functools.partial(moved, device=self._device), batches)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._behind!r}, device={self._device}, prefetch={self._prefetch})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self), (self._behind, self._device, self._prefetch)


def unprepared(loader: Any) -> DataLoader[Any]:  # Any: what stands before a loader says that it is one
    """The loader that stands behind a prepared one; any other is returned."""
    while type(loader) is PreparedDataLoader:
        loader = loader._behind
    plain: DataLoader[Any] = loader
    return plain


class _EpochSampler(_Transparent):
    """A sampler that had no ``set_epoch``, with one that tells whatever does have one, if anything does.

    Args:
        sampler: the loader's.
        listener: the batch sampler, or the sampler within it, that has a ``set_epoch``; None if none has.
    """

    __slots__ = ("_listener",)

    def __init__(self, sampler: Any, listener: Any) -> None:  # Any: the user's own; no class is asked of them
        super().__init__(sampler)
        object.__setattr__(self, "_listener", listener)

    def set_epoch(self, epoch: int) -> None:
        """Tell the epoch to what orders the data. A sampler that draws anew for each epoch needs not be told."""
        if self._listener is not None:
            self._listener.set_epoch(epoch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._behind!r})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self), (self._behind, self._listener)


def _with_set_epoch(loader: Any) -> Any:  # Any: samplers of the user's
    """The loader's sampler if it has ``set_epoch``, else one that stands before it.

    A batch sampler of the user's own orders the data in the sampler's place, so it is the one to hear of the epoch.
    """
    if _hears_of_epochs(loader.sampler):
        return loader.sampler
    batch_sampler = loader.batch_sampler
    within = getattr(batch_sampler, "sampler", None)
    listener = next((each for each in (batch_sampler, within) if _hears_of_epochs(each)), None)
    return _EpochSampler(loader.sampler, listener)


def _hears_of_epochs(sampler: Any) -> bool:  # Any: whatever the user made
    return callable(getattr(sampler, "set_epoch", None))


def moved(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:  # Any: batches are the user's own
    """Return ``batch`` with its tensors on ``device``, in containers of the types that they came in.

    A container in which nothing moved is returned as it is, and no container of the user's is changed.

    Args:
        batch: a tensor; a mapping, list, tuple or dataclass, nested as it may be; or anything else, which is returned.
        device: where tensors go.
        non_blocking: let the caller run on while tensors are copied from pinned memory.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    parts = _parts(batch)
    if parts is None:
        return batch
    if callable(getattr(batch, "to", None)):
        # The container knows what may move: the lengths in a packed sequence, for one, stay on the CPU. Blocking,
        # since not every `to` can be told otherwise.
        return batch.to(device)
    moved_parts = {name: moved(part, device, non_blocking=non_blocking) for name, part in parts}
    if all(moved_parts[name] is part for name, part in parts):
        return batch
    return _rebuilt(batch, moved_parts)


def _parts(batch: Any) -> list[tuple[Any, Any]] | None:  # Any: names and parts of the user's own containers
    """What a container holds, by name or index; None for what is no container."""
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, (list, tuple)):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        return [(name, getattr(batch, name)) for name in names if hasattr(batch, name)]
    return None


def _rebuilt(batch: Any, parts: dict[Any, Any]) -> Any:  # Any: containers of the user's own
    """A container like ``batch`` that holds ``parts``: made plainly if it is a plain one, else from a copy of it."""
    if type(batch) is dict or (isinstance(batch, Mapping) and not isinstance(batch, MutableMapping)):
        return parts
    if isinstance(batch, tuple):
        values = parts.values()
        return batch._make(values) if hasattr(batch, "_make") else type(batch)(values)
    if type(batch) is list:
        return list(parts.values())
    clone = copy.copy(batch)
    for name, part in parts.items():
        if isinstance(batch, (MutableMapping, list)):
            clone[name] = part
        else:
            object.__setattr__(clone, name, part)  # also where the dataclass is frozen
    return clone


def _prefetched(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Give the batches on a CUDA device, and copy each on a stream of its own while the one before it is in use.

    What fails in fetching a batch is raised in that batch's place, after the one before it, as it is without
    prefetching.
    """
    import torch

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own

    def fetched() -> Any:
        batch = next(batches, _END)
        with torch.cuda.stream(stream):
            return moved(batch, device, non_blocking=True)

    ahead = fetched()
    while ahead is not _END:
        batch, failure = ahead, None
        user_stream = torch.cuda.current_stream(device)
        user_stream.wait_stream(stream)
        for tensor in _tensors(batch):
            if tensor.device.type == "cuda":
                # The allocator knows a tensor by the stream that made it, and would hand out its memory while the
                # user's stream still reads it. See torch.Tensor.record_stream.
                tensor.record_stream(user_stream)
        try:
            ahead = fetched()
        except Exception as error:
            ahead, failure = _END, error
        yield batch
        if failure is not None:
            raise failure


def _tensors(batch: Any) -> Iterator[torch.Tensor]:  # Any: batches are the user's own
    import torch

    if isinstance(batch, torch.Tensor):
        yield batch
        return
    for _, part in _parts(batch) or ():
        yield from _tensors(part)
