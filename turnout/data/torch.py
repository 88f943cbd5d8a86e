"""From Arrow batches to tensors by column."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnout.checks import refused
from turnout.data.batches import Batch, array_of, has_plain_numbers
from turnout.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

__all__ = ["Tensors", "device_of"]

_logger = logging.getLogger(__name__)


class Tensors:
    """Makes a batch a dict of tensors.

    Args:
        name: of the data set, for errors.
        columns: that it has.
        dtypes: of all columns, or by column; None keeps what is stored.
        device: where tensors go; ``"auto"`` for the current CUDA device if there is one, else the CPU.
        pin_memory: put them into pinned memory first.
        copies: whether tensors on the CPU must have memory of their own.

    Raises:
        UsageError: an argument cannot be meant.
        DataError: ``dtypes`` names a column that is not there.
    """

    def __init__(
        self,
        *,
        name: str,
        columns: Sequence[str],
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None,
        device: str | torch.device,
        pin_memory: bool,
        copies: bool,
    ) -> None:
        import torch

        self._device = device_of(device)
        self._is_moved = self._device.type != "cpu"
        self._name = name
        self._pin_memory = pin_memory and torch.cuda.is_available()
        if pin_memory and not self._pin_memory:
            _logger.warning("iter_torch_batches(): pin_memory has no effect, as there is no CUDA here")
        self._copies = copies and not self._is_moved
        self._from_numpy = torch.from_numpy
        self._table: pa.Table | None = None
        self._whole: dict[str, np.ndarray | None] = {}
        given = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(columns, dtypes)
        unknown = [column for column in given if column not in columns]
        if unknown:
            raise DataError(
                f"iter_torch_batches(): dtypes names the column {unknown[0]!r}, and datasets[{name!r}] has "
                f"{', '.join(map(repr, columns)) or 'none'}"
            )
        for dtype in given.values():
            if dtype is not None and not isinstance(dtype, torch.dtype):
                raise refused("iter_torch_batches(): dtypes", dtype, "takes a torch.dtype, or one for each column")
        self._dtypes = {column: given.get(column) for column in columns}

    def __call__(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The tensors of a batch, by column, each of ``(rows, ...)``."""
        if batch.table is not self._table:
            self._whole = {name: self._shared(batch.table.column(name)) for name in batch.table.column_names}
            self._table = batch.table
        return {name: self._tensor(name, whole, batch) for name, whole in self._whole.items()}

    def _tensor(self, name: str, whole: np.ndarray | None, batch: Batch) -> torch.Tensor:
        if whole is None:
            tensor = self._converted(name, batch.column(name))
        else:
            tensor = self._from_numpy(whole[batch.start : batch.stop])
            if self._copies:
                tensor = tensor.clone()
        if self._pin_memory:
            tensor = tensor.pin_memory()
        dtype = self._dtypes[name]
        if self._is_moved or dtype is not None:
            tensor = tensor.to(self._device, dtype, non_blocking=self._pin_memory)
        return tensor

    def _shared(self, column: pa.ChunkedArray) -> np.ndarray | None:
        """An array over the column's own memory, if it can be one that torch understands."""
        import numpy as np

        if not has_plain_numbers(column):
            return None
        array = np.asarray(_Memory(column.chunk(0), np.dtype(column.type.to_pandas_dtype())))
        try:
            self._from_numpy(array[:0])
        except TypeError:  # torch has no such numbers
            return None
        return array

    def _converted(self, name: str, column: pa.ChunkedArray) -> torch.Tensor:
        import torch

        array = array_of(column)
        if array.dtype == object and len(array) and len({getattr(row, "shape", None) for row in array}) == 1:
            array = _stacked(array)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that it cannot be written to: it is copied at once
                return torch.as_tensor(array).clone()
        except (TypeError, ValueError) as error:
            why = _why_no_tensor(column)
            raise DataError(
                f"datasets[{self._name!r}]: the column {name!r}, of {column.type}, cannot be a tensor: {why}; "
                "pass collate_fn, which gets arrays, or leave the column out of the data"
            ) from error


def _why_no_tensor(column: pa.ChunkedArray) -> str:
    import pyarrow as pa

    if column.null_count:
        return "it has missing values"
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "its rows differ in length, or hold what are no numbers"
    return "torch has no such numbers"


def device_of(device: Any) -> torch.device:  # Any: it checks
    """Where `iter_torch_batches` has tensors go, which was asked for this device.

    Raises:
        UsageError: there is no such device.
    """
    import torch

    if isinstance(device, str) and device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    remedy = 'takes "auto", or a torch.device or its name'
    if not isinstance(device, (str, torch.device)):
        raise refused("iter_torch_batches(): device", device, remedy)
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise refused("iter_torch_batches(): device", device, f"{remedy} ({error})") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise refused("iter_torch_batches(): device", str(device), 'there is no CUDA here; "auto" is the CPU then')
    return found


class _Memory:
    """An Arrow array's memory, as numpy's array interface describes it: as such that can be written to.

    numpy and Arrow would say that it cannot, and torch warn of every tensor over it; but it is nobody else's.
    """

    def __init__(self, array: pa.Array, dtype: np.dtype[Any]) -> None:
        self._array = array  # keeps the memory
        self.__array_interface__ = {
            "data": (array.buffers()[1].address + array.offset * dtype.itemsize, False),
            "shape": (len(array),),
            "typestr": dtype.str,
            "version": 3,
        }


def _stacked(array: Any) -> Any:
    import numpy as np

    try:
        return np.stack(list(array))
    except (TypeError, ValueError):
        return array
