"""A run's history: nothing is lost or changed on the way, whatever was cut short, and appending costs little."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.helpers import started
from turnout.storage.history import BATCH_ROWS, MetricsHistory, history_dataframe, read_history
from turnout.storage.location import StorageLocation
from turnout.storage.run_folder import ResumePoint, RunFolder
from turnout.testing.faults import Fault, InjectedError, armed

ODD: list[dict[str, Any]] = [
    {"loss": 0.5, "step": 1},
    {"loss": math.nan, "best": math.inf, "worst": -math.inf},
    {"eval": {"acc": 0.5, "deep": {"er": 1}}, "name": "ü"},
    {"eval": 3, "loss": "a word now"},
    {"eval": {}, "a/b": 1, "a": {"b": 2}, "list": [1, None, {"x": math.nan}]},
    {"none": None, "flag": True, "big": 1 << 80, "": 1},
    {"flag": 1, "index": 7, "metrics_json": "x", "rank": None},
    {},
]


def metrics_of(run: RunFolder) -> list[dict[str, Any]]:
    return [row.metrics for row in read_history(run)]


def test_every_report_comes_back_as_it_was_before_and_after_sealing(run: RunFolder) -> None:
    history = MetricsHistory(run)
    for index, metrics in enumerate(ODD):
        history.append(index, index % 2, 0, metrics, f"checkpoint_{index}" if index == 2 else None)
    history.flush()
    assert same(metrics_of(run), ODD)
    before = list(read_history(run))
    history.seal()
    after = list(read_history(run))
    assert same([row.metrics for row in after], ODD)
    fixed = [(row.index, row.rank, row.attempt, row.time, row.checkpoint) for row in before]
    assert fixed == [(row.index, row.rank, row.attempt, row.time, row.checkpoint) for row in after]
    assert {e.path for e in run.location.listing() if not e.is_folder} == {"metrics.parquet", "run.json"}


def same(left: Any, right: Any) -> bool:
    """Equal in types and values, where NaN equals NaN and the order of keys is nobody's business."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and bool(left == right)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.integers(min_value=1 << 53)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text("ab/", max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
METRICS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "a/b", "index"]), VALUES, max_size=3), max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(METRICS, st.integers(0, 6))
def test_any_metrics_survive_sealing_twice(tmp_path_factory: pytest.TempPathFactory, rows: Any, first: int) -> None:
    run = started(StorageLocation.open(tmp_path_factory.mktemp("storage")))
    history = MetricsHistory(run)
    for index, metrics in enumerate(rows):
        if index == first:
            history.seal()
        history.append(index, 0, 0, metrics)
    history.seal()
    assert same(metrics_of(run), rows)


def test_a_run_that_goes_on_continues_after_the_sealed_part(run: RunFolder) -> None:
    for attempt in range(3):
        history = MetricsHistory(run)
        history.append(attempt, 0, attempt, {"loss": float(attempt)})
        history.flush()
        assert [row.index for row in read_history(run)] == list(range(attempt + 1))
        history.seal()
    assert [row.metrics["loss"] for row in read_history(run)] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("point", ["history.before_seal", "history.after_seal"])
def test_a_crash_while_sealing_loses_and_doubles_nothing(run: RunFolder, point: str) -> None:
    history = MetricsHistory(run)
    for index in range(5):
        history.append(index, 0, 0, {"i": index})
    with armed(Fault(point=point, action="raise")), pytest.raises(InjectedError):
        history.seal()
    assert [row.index for row in read_history(run)] == list(range(5))
    again = MetricsHistory(run)
    again.append(5, 0, 1, {"i": 5})
    again.flush()
    assert [row.index for row in read_history(run)] == list(range(6))
    again.seal()
    assert [row.index for row in read_history(run)] == list(range(6))


def test_a_last_line_that_was_cut_short_spoils_neither_reading_nor_the_next_line(local_run: RunFolder) -> None:
    history = MetricsHistory(local_run)
    for index in range(3):
        history.append(index, 0, 0, {"i": index})
    history.close()
    place = local_run.location / "metrics.jsonl"
    data = place.read()
    assert data is not None
    place.put(data[:-10])
    assert [row.index for row in read_history(local_run)] == [0, 1]
    again = MetricsHistory(local_run)
    again.append(9, 0, 1, {"i": 9})
    again.close()
    assert [row.index for row in read_history(local_run)] == [0, 1, 9]


def test_a_storage_that_refuses_loses_nothing(run: RunFolder) -> None:
    history = MetricsHistory(run)
    history.append(0, 0, 0, {"i": 0})
    with armed(Fault(point="history.before_write", action="enospc")), pytest.raises(OSError, match="No space"):
        history.flush()
    history.append(1, 0, 0, {"i": 1})
    history.close()
    assert [row.index for row in read_history(run)] == [0, 1]


def test_where_nothing_can_be_appended_segments_are_numbered_and_few(tmp_path: Path) -> None:
    run = started(StorageLocation.open(f"memory://{tmp_path.name}-segments"))
    for _ in range(2):
        history = MetricsHistory(run)
        for index in range(30):
            history.append(index, 0, 0, {"text": "x" * 10_000 * (index % 10)})
            history.flush()
        history.close()
    names = [entry.path for entry in run.location.listing() if entry.path.endswith(".jsonl")]
    assert names == ["metrics-000000.jsonl", "metrics-000001.jsonl", "metrics-000002.jsonl", "metrics-000003.jsonl"]
    assert [row.index for row in read_history(run)] == [*range(30), *range(30)]


def test_the_frame_shows_rank_zeros_reports_that_count(local_run: RunFolder) -> None:
    history = MetricsHistory(local_run)
    for index in range(4):
        for rank in range(2):
            name = f"checkpoint_{index:06d}" if index < 3 else None
            history.append(index, rank, 0, {"loss": float(index), "eval": {"acc": rank}}, name)
    local_run.begin_attempt("again")
    local_run.set_resume_point(ResumePoint(name="checkpoint_000001", attempt=0, index=1))
    history.append(2, 0, 1, {"loss": 20.0, "eval": {"acc": "odd"}})
    history.append(2, 1, 1, {"loss": 21.0})
    history.seal()
    frame = history_dataframe(local_run)
    assert list(frame.columns) == ["loss", "eval/acc"]
    assert list(frame.index) == [0, 1, 2]
    assert list(frame["loss"]) == [0.0, 1.0, 20.0]
    assert list(frame["eval/acc"]) == [0, 0, "odd"]
    assert list(history_dataframe(local_run, rank=1)["loss"]) == [0.0, 1.0, 21.0]
    assert len(list(read_history(local_run))) == 10
    local_run.begin_attempt("anew")
    local_run.set_resume_point(ResumePoint())
    assert len(history_dataframe(local_run)) == 0


def test_the_sealed_file_has_typed_columns_for_others_to_read(local_run: RunFolder) -> None:
    import pyarrow.parquet as pq

    history = MetricsHistory(local_run)
    history.append(0, 0, 0, {"loss": 1, "eval": {"acc": 0.5}, "mixed": 1})
    history.append(1, 0, 0, {"loss": 0.5, "mixed": "a"})
    history.seal()
    table = pq.read_table(f"{local_run.location.path}/metrics.parquet")
    assert {str(field.type) for field in table.schema if field.name in ("loss", "eval/acc")} == {"double"}
    assert "mixed" not in table.schema.names
    assert table["loss"].to_pylist() == [1.0, 0.5]


def test_appending_costs_microseconds_and_bounded_memory(local_run: RunFolder) -> None:
    history = MetricsHistory(local_run)
    num_rows = 100_000
    costs = []
    for _ in range(3):
        begin = time.perf_counter()
        for index in range(num_rows):
            history.append(index, 0, 0, {"loss": 0.5, "step": index})
            assert len(history._rows) <= BATCH_ROWS
        costs.append((time.perf_counter() - begin) / num_rows)
    history.close()
    assert min(costs) < 20e-6  # about 3 on an idle machine
    assert sum(1 for _ in read_history(local_run)) == 3 * num_rows


def test_a_flusher_beside_the_appender_loses_and_doubles_nothing(local_run: RunFolder) -> None:
    history = MetricsHistory(local_run, has_flusher=True)
    done = threading.Event()

    def flush() -> None:
        while not done.is_set():
            history.flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    for index in range(30_000):
        history.append(index, 0, 0, {"i": index})
    done.set()
    flusher.join()
    history.close()
    rows = [row.index for row in read_history(local_run)]
    assert sorted(rows) == list(range(30_000))
    assert os.path.getsize(f"{local_run.location.path}/metrics.jsonl") > 0
