"""`ArrowShard`: what `get_dataset_shard` gives of Arrow data: one rank's rows, in batches, on every track."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from turnout.checks import check_choice, check_integer, refused
from turnout.data.arrow_source import ArrowSource, opened
from turnout.data.batches import FORMATS, Arrays, Batch, in_batches, in_format, shuffled
from turnout.data.dealing import Stretch, dealt, share_of
from turnout.data.read_ahead import read_ahead
from turnout.data.shard_state import ShardState, Shuffle
from turnout.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import torch

__all__ = ["ArrowShard"]


class ArrowShard:
    """One rank's share of Arrow data. The names of its methods and arguments are Ray Data's.

    Every iteration is an epoch. Its order is that of the data, until `set_epoch` is called: from then on the order of
    the pieces (row groups of files, stretches of 1,024 rows of a table) is drawn for every epoch. Rows are shuffled
    among each other by ``local_shuffle_buffer_size``.

    Args:
        name: of the data set, for errors.
        data: a `pyarrow.Table`, a `pyarrow.dataset.Dataset`, or the path or URI of Parquet.
        rank: whose share it is.
        world_size: among how many.
        equal: whether all ranks get the same number of rows, and the remainder, another one each epoch, is left out;
            else every row is on one rank, and sizes differ by one at most.

    Raises:
        DataError: there is nothing to read there.
    """

    def __init__(self, name: str, data: Any, *, rank: int = 0, world_size: int = 1, equal: bool = True) -> None:
        self._name = name
        self._source: ArrowSource = opened(name, data)
        self._rank = rank
        self._world_size = world_size
        self._equal = equal
        self._seed: int | None = None
        self._epoch = 0
        self._is_begun = False
        self._rows_given = 0
        self._shuffle: Shuffle | None = None
        self._loaded: ShardState | None = None  # where the next iteration goes on

    # -- the order

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of the next iteration from ``epoch``, the same on every rank.

        Raises:
            UsageError: it is no whole number of at least 0.
        """
        number = check_integer("set_epoch(): epoch", epoch, at_least=0, remedy="takes a whole number of at least 0")
        if self._loaded is not None and number == self._epoch and self._seed is not None:
            return  # the epoch that `load_state_dict` goes on with
        self._seed = 0
        self._epoch, self._is_begun, self._loaded = number, False, None

    def state_dict(self) -> dict[str, Any]:
        """Where this rank is in the current epoch; save it with a checkpoint, and `load_state_dict` goes on there.

        It counts the rows of the batches that the loop was given, whatever has been read ahead, in types of JSON.
        """
        return self._state().as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another run of the same data on as many ranks was: the next iteration is the rest of its epoch.

        The rows are the very ones that were left, also of a shuffled epoch, whatever the size of the batches. Of an
        epoch that was at its end the rest is empty.

        Raises:
            UsageError: it is no state of such a shard. So too where the next iteration shuffles otherwise than the one
                that was begun.
        """
        loaded = ShardState.of(state)
        loaded.refuse_unless_of(self._name, self._state(), self.count())
        self._epoch, self._seed = loaded.epoch, loaded.seed
        self._is_begun, self._loaded = False, loaded if loaded.rows else None

    # -- what is in it

    def schema(self) -> pa.Schema:
        """The columns, as a `pyarrow.Schema`."""
        return self._source.schema

    def count(self) -> int:
        """How many rows this rank has in an epoch."""
        start, stop = share_of(sum(self._source.sizes()), self._rank, self._world_size, equal=self._equal)
        return stop - start

    def materialize(self) -> ArrowShard:
        """This rank's rows of the current epoch, read into memory: a shard of their own, whole on this rank."""
        return ArrowShard(self._name, self._read().combine_chunks())

    def to_pandas(self) -> pd.DataFrame:
        """This rank's rows of the current epoch."""
        return self._read().to_pandas()

    # -- iterating

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """This rank's rows, as dicts of Python values."""
        for table in read_ahead(self._tables(self._begin(None, None))):
            for row in table.to_pylist():
                self._rows_given += 1
                yield row

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterator[Any]:  # Any: what the format makes
        """This rank's rows, in batches.

        Args:
            prefetch_batches: while fewer batches' rows wait, more are read (and shuffled) in the background; 0 for
                none. Up to 131,072 rows or 16 MiB are read at a time, so that a small number reads as far ahead as 1.
                Beside what waits, one such read is held, and compressed data of the row group that it is of: all of it
                where that is remote and below 64 MiB, else windows of 32 MiB in all, which many columns exceed.
            batch_size: rows of a batch; None gives them as they are read.
            batch_format: ``"numpy"``, which is the default: a dict of arrays by column, which share the memory that was
                read and cannot be written to; ``"pandas"``: a `DataFrame`; ``"pyarrow"``: a `Table`.
            drop_last: leave out the last batch if it is smaller.
            local_shuffle_buffer_size: shuffle rows within a buffer that holds at least as many, and at most twice.
            local_shuffle_seed: makes the shuffling repeat itself; it differs from epoch to epoch all the same, and
                means nothing without a buffer.

        Raises:
            UsageError: an argument cannot be meant.
            DataError: a file cannot be read, or has another schema than the rest.
        """
        check_choice("iter_batches(): batch_format", batch_format or "pyarrow", FORMATS)
        _check_arguments("iter_batches()", batch_size, prefetch_batches, local_shuffle_buffer_size, local_shuffle_seed)
        batches = self._batches(batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        return in_format(batches, batch_format or "pyarrow")

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: torch.dtype | dict[str, torch.dtype] | None = None,
        device: str | torch.device = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,  # Any: the user's own batches
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Iterator[Any]:  # Any: a dict of tensors, or what collate_fn makes
        """This rank's rows, in batches of tensors by column.

        On the CPU a tensor of numbers without missing values shares the memory that was read, which is nobody else's;
        of a table of the user's own it is a copy.

        Args:
            prefetch_batches: while fewer batches' rows wait, more are read (and shuffled) in the background; 0 for
                none. Up to 131,072 rows or 16 MiB are read at a time, so that a small number reads as far ahead as 1.
                Beside what waits, one such read is held, and compressed data of the row group that it is of: all of it
                where that is remote and below 64 MiB, else windows of 32 MiB in all, which many columns exceed.
            batch_size: rows of a batch; None gives them as they are read.
            dtypes: of all columns, or by column; None keeps what is stored.
            device: where tensors go; ``"auto"`` for the current CUDA device if there is one, else the CPU.
            collate_fn: called with a dict of numpy arrays in place of all that; moving is left to it.
            drop_last: leave out the last batch if it is smaller.
            local_shuffle_buffer_size: shuffle rows within a buffer that holds at least as many, and at most twice.
            local_shuffle_seed: makes the shuffling repeat itself.
            pin_memory: put tensors into pinned memory before they go to a CUDA device.

        Raises:
            UsageError: an argument cannot be meant.
            DataError: ``dtypes`` names a column that is not there, a column cannot be a tensor, or a file cannot be
                read.
        """
        from turnout.data.torch import Tensors

        _check_arguments(
            "iter_torch_batches()", batch_size, prefetch_batches, local_shuffle_buffer_size, local_shuffle_seed
        )
        if collate_fn is not None and not callable(collate_fn):
            raise refused("iter_torch_batches(): collate_fn", collate_fn, "takes a function of a dict of numpy arrays")
        for name, is_given in (
            ("dtypes", dtypes is not None),
            ("device", device != "auto"),
            ("pin_memory", pin_memory),
        ):
            if collate_fn is not None and is_given:
                text = f"iter_torch_batches(): {name} has no effect beside collate_fn, which makes the batch"
                raise UsageError(f"{text}; drop one of the two")
        batches = self._batches(batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        if collate_fn is not None:
            return map(collate_fn, map(Arrays(), batches))
        tensors = Tensors(
            name=self._name,
            columns=self.schema().names,
            dtypes=dtypes,
            device=device,
            pin_memory=pin_memory,
            copies=self._source.is_shared,
        )
        return map(tensors, batches)

    def __repr__(self) -> str:
        return f"ArrowShard({self._name!r}, rank {self._rank} of {self._world_size})"

    # -- within

    def _state(self) -> ShardState:
        sizes = self._source.sizes()
        rows, shuffle = self._rows_given, self._shuffle
        if not self._is_begun:
            rows, shuffle = (self._loaded.rows, self._loaded.shuffle) if self._loaded is not None else (0, None)
        return ShardState(
            epoch=self._epoch,
            rows=rows,
            seed=self._seed,
            shuffle=shuffle,
            rank=self._rank,
            world_size=self._world_size,
            equal=self._equal,
            total_rows=sum(sizes),
            layout=self._layout,
        )

    @functools.cached_property
    def _layout(self) -> str:
        columns = [(each.name, str(each.type)) for each in self.schema()]
        return hashlib.sha256(json.dumps([list(self._source.sizes()), columns]).encode()).hexdigest()[:16]

    def _begin(self, buffer_size: int | None, seed: int | None) -> int:
        """An iteration begins; returns how many of its rows were given before."""
        if self._loaded is not None:
            self._shuffle = self._loaded.shuffle_to_go_on_with(buffer_size, seed)
        elif buffer_size is not None:
            self._shuffle = Shuffle(
                buffer_size=int(buffer_size), seed=os.urandom(8).hex() if seed is None else int(seed)
            )
        else:
            self._shuffle = None
        if self._is_begun:
            self._epoch += 1
        self._is_begun = True
        self._rows_given = self._loaded.rows if self._loaded is not None else 0
        self._loaded = None
        return self._rows_given

    def _batches(
        self,
        batch_size: int | None,
        prefetch_batches: int,
        drop_last: bool,
        buffer_size: int | None,
        shuffle_seed: int | None,
    ) -> Generator[Batch]:
        # Ranges and states are of plain numbers, whatever the user counts with.
        size = None if batch_size is None else int(batch_size)
        read = self._tables(self._begin(buffer_size, shuffle_seed))
        num_rows = None if size is None else int(prefetch_batches) * size
        tables = read_ahead(read, num_rows=num_rows, num_tables=int(prefetch_batches)) if prefetch_batches else read
        for batch in in_batches(tables, size, drop_last=drop_last):
            self._rows_given += batch.num_rows
            yield batch

    def _tables(self, skip: int) -> Generator[pa.Table]:
        """An iteration's rows after the first ``skip``, as they are read."""
        if self._shuffle is None:
            return self._source.read(_after(self._stretches(), skip))
        # The order of the buffer comes of all rows before, so that those are read again.
        seed = f"{self._shuffle.seed} {self._epoch} {self._rank}"
        return _dropped(shuffled(self._source.read(self._stretches()), self._shuffle.buffer_size, seed), skip)

    def _read(self) -> pa.Table:
        """All rows of the current epoch."""
        import pyarrow as pa

        tables = list(self._source.read(self._stretches()))
        return pa.concat_tables(tables) if tables else self.schema().empty_table()

    def _stretches(self) -> list[Stretch]:
        return dealt(
            self._source.sizes(),
            rank=self._rank,
            world_size=self._world_size,
            equal=self._equal,
            epoch=self._epoch,
            seed=self._seed,
        )


def _after(stretches: list[Stretch], skip: int) -> list[Stretch]:
    """The same rows without the first ``skip``."""
    left = []
    for each in stretches:
        dropped = min(skip, each.stop - each.start)
        skip -= dropped
        if each.start + dropped < each.stop:
            left.append(each._replace(start=each.start + dropped))
    return left


def _dropped(tables: Iterator[pa.Table], skip: int) -> Generator[pa.Table]:
    for table in tables:
        dropped = min(skip, table.num_rows)
        skip -= dropped
        if dropped < table.num_rows:
            yield table.slice(dropped)


def _check_arguments(
    call: str, batch_size: Any, prefetch_batches: Any, buffer_size: Any, seed: Any
) -> None:  # Any: it checks
    if batch_size is not None:
        remedy = "takes a whole number of rows of at least 1, or None for batches as they are read"
        check_integer(f"{call}: batch_size", batch_size, at_least=1, remedy=remedy)
    check_integer(f"{call}: prefetch_batches", prefetch_batches, at_least=0, remedy="takes 0 or more batches")
    if buffer_size is not None:
        remedy = "takes a whole number of rows of at least 1, or None"
        check_integer(f"{call}: local_shuffle_buffer_size", buffer_size, at_least=1, remedy=remedy)
    if seed is not None:
        remedy = "takes a whole number of at least 0, or None for one that is drawn"
        check_integer(f"{call}: local_shuffle_seed", seed, at_least=0, remedy=remedy)
