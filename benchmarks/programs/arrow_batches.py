"""Time one epoch over Parquet in batches of 8,192 rows.

    python arrow_batches.py write FOLDER | own FOLDER | peer FOLDER

Own is Turnout, pyarrow's scan and torch's DataLoader in one process, each after a warm-up; the peer is Ray Data in a
cluster of its own, its first epoch and its second. Prints million rows/s.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_COLUMNS = 10
NUM_ROWS = 5_000_000
BATCH_SIZE = 8192
NUM_LOADER_ROWS = 4 * BATCH_SIZE  # rows that torch's DataLoader takes one by one


def write(folder: str) -> dict[str, int]:
    """Make the data: one file, float32, as pyarrow writes it if it is not told otherwise."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    table = pa.table({f"x{index}": random.random(NUM_ROWS, dtype=np.float32) for index in range(NUM_COLUMNS)})
    pq.write_table(table, Path(folder) / "data.parquet")
    return {"rows": table.num_rows}


def rate_of(epoch: Callable[[], int]) -> float:
    """Million rows/s of an epoch, which returns how many rows it had."""
    started = time.perf_counter()
    num_rows = epoch()
    return num_rows / (time.perf_counter() - started) / 1e6


def of_own(folder: str) -> dict[str, float]:
    """The rates of Turnout, of pyarrow and of torch."""
    import pyarrow.dataset
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from turnout import DataParallelTrainer, ScalingConfig, get_dataset_shard

    def scan() -> int:
        num_rows = 0
        for batch in pyarrow.dataset.dataset(folder, format="parquet").to_batches(batch_size=BATCH_SIZE):
            arrays = [column.to_numpy() for column in batch.columns]
            num_rows += len(arrays[0])
        return num_rows

    def reader() -> int:
        num_rows = 0
        with pq.ParquetFile(Path(folder) / "data.parquet") as file:
            for batch in file.iter_batches(BATCH_SIZE):
                arrays = [column.to_numpy() for column in batch.columns]
                num_rows += len(arrays[0])
        return num_rows

    def tensors() -> int:
        num_rows = 0
        for batch in get_dataset_shard().iter_torch_batches(batch_size=BATCH_SIZE):
            num_rows += len(batch["x0"])
        return num_rows

    def stacked() -> int:
        num_rows = 0
        for batch in get_dataset_shard().iter_torch_batches(batch_size=BATCH_SIZE):
            num_rows += len(torch.stack(tuple(batch.values()), dim=1))
        return num_rows

    table = pq.ParquetFile(Path(folder) / "data.parquet").read_row_group(0).slice(0, NUM_LOADER_ROWS)
    memory = TensorDataset(*(torch.from_numpy(column.to_numpy().copy()) for column in table.columns))
    del table

    def loader() -> int:
        return sum(len(batch[0]) for batch in DataLoader(memory, batch_size=BATCH_SIZE))

    rates: dict[str, float] = {}

    def train_fn() -> None:
        for _ in range(2):  # the first is a warm-up
            for side in (scan, tensors, stacked, reader, loader):
                rates[side.__name__] = rate_of(side)

    trainer = DataParallelTrainer(
        train_fn, scaling_config=ScalingConfig(num_workers=0), datasets={"train": Path(folder)}
    )
    trainer.fit()
    return rates


def of_peer(folder: str) -> dict[str, float]:
    """The rates of Ray Data."""
    import ray

    ray.init(address="local", include_dashboard=False)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        dataset = ray.data.read_parquet(folder)

        def epoch() -> int:
            return sum(len(batch["x0"]) for batch in dataset.iter_torch_batches(batch_size=BATCH_SIZE))

        return {"first": rate_of(epoch), "second": rate_of(epoch)}
    finally:
        ray.shutdown()


if __name__ == "__main__":
    side, place = sys.argv[1:]
    sides: dict[str, Callable[[str], dict[str, Any]]] = {"write": write, "own": of_own, "peer": of_peer}
    print(json.dumps(sides[side](place)))
