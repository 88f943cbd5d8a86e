"""How much of a data set is held, and which threads are there for it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from turnout import DataError
from turnout.data.arrow import ArrowShard
from turnout.data.read_ahead import read_ahead

NUM_ROWS = 3_000_000
NUM_BYTES = NUM_ROWS * 80

PEAK = """
    import json, sys, threading
    import pyarrow as pa, pyarrow.dataset as ds
    from turnout.data.arrow import ArrowShard

    path, is_slow, is_filtered, arguments = sys.argv[1], *map(json.loads, sys.argv[2:])
    data = ds.dataset(path).filter(ds.field("x0") >= 0) if is_filtered else path
    num_rows = 0
    for batch in ArrowShard("train", data).iter_batches(batch_size=4096, **arguments):
        num_rows += len(batch["x0"])
        for thread in threading.enumerate() if is_slow else ():
            if thread.name == "turnout-read-ahead":
                thread.join()
    print(json.dumps([num_rows, pa.default_memory_pool().max_memory()]))
"""


def peak_of(path: Path, *, is_slow: bool = False, is_filtered: bool = False, **arguments: int) -> int:
    """The most bytes that Arrow held at once while a process of its own went over all batches."""
    command = [sys.executable, "-c", textwrap.dedent(PEAK), str(path), *map(json.dumps, (is_slow, is_filtered))]
    done = subprocess.run([*command, json.dumps(arguments)], capture_output=True, text=True, check=True)
    num_rows, peak = json.loads(done.stdout)
    assert num_rows == NUM_ROWS
    return int(peak)


@pytest.fixture(scope="module", params=[100_000, NUM_ROWS], ids=["many row groups", "one row group"])
def large_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "data.parquet"
    numbers = np.random.default_rng(0).random(NUM_ROWS)
    table = pa.table({f"x{index}": numbers for index in range(10)})
    pq.write_table(table, path, row_group_size=request.param, use_dictionary=False, compression="none")
    return path


@pytest.mark.parametrize("is_slow", [False, True], ids=["fast", "slow"])
def test_memory_is_bounded_by_what_is_read_ahead_and_not_by_the_file(large_file: Path, is_slow: bool) -> None:
    assert peak_of(large_file, is_slow=is_slow) < NUM_BYTES / 2.5
    assert peak_of(large_file, is_slow=is_slow, prefetch_batches=0) < NUM_BYTES / 2.5


def test_shuffling_holds_its_buffer_twice_at_most_and_not_the_file(large_file: Path) -> None:
    assert peak_of(large_file, is_slow=True, local_shuffle_buffer_size=50_000, local_shuffle_seed=1) < NUM_BYTES / 2.5


def test_what_is_read_ahead_grows_with_the_batches_that_are_asked_for(large_file: Path) -> None:
    assert peak_of(large_file, is_slow=True, prefetch_batches=400) > 400 * 4096 * 80


def test_of_a_filtered_data_set_one_row_group_is_held_at_a_time(large_file: Path) -> None:
    if pq.ParquetFile(large_file).num_row_groups > 1:
        assert peak_of(large_file, is_filtered=True, is_slow=True) < NUM_BYTES / 2


def one_row_tables(given: list[int], number: int = 100) -> Generator[pa.Table]:
    for index in range(number):
        given.append(index)
        yield pa.table({"x": [index]})


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "turnout-read-ahead"]


def wait_for_the_reader() -> None:
    for thread in threads():
        thread.join()


@pytest.mark.parametrize("num_rows", [1, 5])
def test_as_many_rows_wait_as_are_asked_for_and_then_no_thread_does(num_rows: int) -> None:
    given: list[int] = []
    tables = read_ahead(one_row_tables(given), num_rows=num_rows, num_tables=100)
    for index in range(50):
        assert next(tables)["x"].to_pylist() == [index]
        wait_for_the_reader()
        assert len(given) == index + 1 + num_rows
        assert not threads()
    del tables


def test_batches_as_they_are_read_are_read_ahead_by_their_number() -> None:
    given: list[int] = []
    tables = read_ahead(one_row_tables(given), num_tables=3)
    next(tables)
    wait_for_the_reader()
    assert len(given) == 4
    del tables


def test_an_iterator_that_is_dropped_leaves_no_thread_and_no_open_file(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(100_000)})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=1000)
    for batch in ArrowShard("t", tmp_path).iter_batches(batch_size=10, prefetch_batches=1000):
        assert len(batch["x"]) == 10
        break
    del batch
    assert not threads()


def test_what_goes_wrong_in_the_background_is_raised_at_the_consumer_after_what_came_before() -> None:
    def broken() -> Generator[pa.Table]:
        yield pa.table({"x": [1]})
        raise DataError("the second is broken")

    tables = read_ahead(broken(), num_rows=10)
    assert next(tables)["x"].to_pylist() == [1]
    with pytest.raises(DataError, match="the second is broken"):
        next(tables)
    with pytest.raises(StopIteration):
        next(tables)


def test_an_iterator_may_become_garbage_on_its_own_thread() -> None:
    tables: list[object] = []
    is_asked_for, may_go_on = threading.Event(), threading.Event()

    def slow() -> Generator[pa.Table]:
        yield pa.table({"x": [1]})
        is_asked_for.set()
        may_go_on.wait()
        tables.clear()
        yield pa.table({"x": [2]})

    tables.append(read_ahead(slow()))
    next(tables[0])  # type: ignore[call-overload]  # the list holds an iterator
    is_asked_for.wait()
    (reader,) = threads()
    may_go_on.set()
    reader.join()


def test_a_process_ends_while_an_iterator_is_under_way(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100_000)}), tmp_path / "data.parquet", row_group_size=1000)
    code = (
        "from turnout.data.arrow import ArrowShard; "
        f"batches = ArrowShard('t', {str(tmp_path)!r}).iter_batches(batch_size=10, prefetch_batches=100); "
        "print(len(next(batches)['x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert (done.stdout, done.stderr) == ("10\n", "")


def test_rows_of_a_data_set_in_memory_are_not_written_to() -> None:
    table = pa.table({"x": [1, 2, 3]})
    for data in (table, ds.dataset(table)):
        (batch,) = ArrowShard("t", data).iter_torch_batches()
        batch["x"][0] = 100
    assert table["x"].to_pylist() == [1, 2, 3]
