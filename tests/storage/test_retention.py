"""Which checkpoints are kept: the laws of the choice, and its carrying out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.helpers import folder_with, save
from turnout import CheckpointConfig
from turnout.storage.reading import clean_uncommitted, committed
from turnout.storage.record import CommitRecord, read_record
from turnout.storage.retention import Retention, best_first, choose_deletions, score_of
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, armed


def record(index: int, metrics: dict[str, Any], attempt: int = 0) -> CommitRecord:
    name = f"{index}-{attempt}"
    return CommitRecord(name=name, run="r", index=index, attempt=attempt, time=0.0, world_size=1, metrics=metrics)


SCORES = st.one_of(
    st.none(), st.just(math.nan), st.just("text"), st.booleans(), st.integers(), st.floats(allow_nan=False)
)
RECORDS = st.lists(SCORES, max_size=12).map(
    lambda scores: [record(i, {} if score is None else {"acc": score}) for i, score in enumerate(scores)]
)
ORDERS = st.sampled_from(["max", "min"])


@given(RECORDS, st.integers(1, 5), st.sampled_from([None, "acc"]), ORDERS, st.sets(st.integers(0, 11)))
def test_the_laws_of_retention(
    records: list[CommitRecord], keep: int, attribute: str | None, order: str, in_use: set[int]
) -> None:
    config = CheckpointConfig(num_to_keep=keep, checkpoint_score_attribute=attribute, checkpoint_score_order=order)
    protected = {f"{index}-0" for index in in_use}
    deleted = choose_deletions(records, config, protected)
    names = {each.name for each in deleted}
    kept = [each for each in records if each.name not in names]
    # The newest and those in use are never deleted, and never more is kept than was asked for besides.
    if records:
        assert records[-1] in kept
    assert not names & protected
    assert len(kept) <= keep + 1 + len(protected & {each.name for each in records})
    assert len(kept) >= min(keep, len(records))
    # The best are kept, in the sense of `best_first`.
    assert {each.name for each in best_first(records, attribute, order)[:keep]} <= {each.name for each in kept}
    # What was kept once is kept again: the choice is stable.
    assert choose_deletions(kept, config, protected) == []
    # The order in which they are given does not matter.
    assert choose_deletions(list(reversed(records)), config, protected) == deleted


@given(RECORDS, ORDERS)
def test_a_score_beats_none_in_both_orders(records: list[CommitRecord], order: str) -> None:
    ranked = best_first(records, "acc", order)
    scores = [score_of(each.metrics, "acc") for each in ranked]
    numbers = [score for score in scores if score is not None]
    assert scores == numbers + [None] * (len(scores) - len(numbers))
    assert numbers == sorted(numbers, reverse=order == "max")
    assert sorted(each.index for each in ranked) == [each.index for each in records]


def test_nested_scores_are_found_and_a_plain_name_comes_first() -> None:
    assert score_of({"eval": {"acc": 0.5}}, "eval/acc") == 0.5
    assert score_of({"eval/acc": 0.25, "eval": {"acc": 0.5}}, "eval/acc") == 0.25
    assert score_of({"eval": 3}, "eval/acc") is None
    assert score_of({"eval": {"acc": math.nan}}, "eval/acc") is None


def test_scores_one_nan_a_half_and_none_with_one_kept(local_run: RunFolder, tmp_path: Path) -> None:
    config = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score")
    retention = Retention(local_run, config)
    folder = folder_with(tmp_path / "given", {"x": b"x"})
    for index, metrics in enumerate([{"score": 1.0}, {"score": math.nan}, {"score": 0.5}, {}]):
        retention.remember(save(local_run, folder, index, metrics=metrics))
        retention.apply()
    assert local_run.folder_names() == ["checkpoint_000000", "checkpoint_000003"]
    assert [each.index for each in best_first(committed(local_run), "score", "max")] == [0, 3]


def test_a_missing_score_is_warned_of_once(local_run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    retention = Retention(local_run, CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score"))
    for index in range(3):
        retention.remember(record(index, {"score": math.nan} if index else {}))
    assert len(caplog.records) == 1
    assert "'score'" in caplog.text


def test_retention_removes_on_every_storage_and_spares_what_is_in_use(run: RunFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "given", {"x": b"x"})
    records = [save(run, folder, index) for index in range(5)]
    retention = Retention(run, CheckpointConfig(num_to_keep=1), records)
    assert [each.index for each in retention.apply(protected={"checkpoint_000001"})] == [0, 2, 3]
    assert [each.index for each in committed(run)] == [1, 4]
    assert [each.index for each in retention.apply()] == [1]
    assert [each.index for each in retention.records] == [4]


@pytest.mark.parametrize("point", ["remove.before_record", "remove.after_record"])
def test_a_removal_that_was_cut_off_offers_nothing_and_is_finished_later(
    local_run: RunFolder, tmp_path: Path, point: str
) -> None:
    folder = folder_with(tmp_path / "given", {"x": b"x"})
    records = [save(local_run, folder, index) for index in range(2)]
    retention = Retention(local_run, CheckpointConfig(num_to_keep=1), records)
    with armed(Fault(point=point, action="raise")), pytest.raises(OSError, match="injected"):
        retention.apply()
    half = local_run.checkpoints / "checkpoint_000000"
    assert half.is_folder()
    listed = [each.index for each in committed(local_run)]
    assert listed == ([0, 1] if point == "remove.before_record" else [1])
    assert (read_record(half) is None) == (point == "remove.after_record")
    cleaned = clean_uncommitted(local_run)
    assert cleaned == ([] if point == "remove.before_record" else ["checkpoint_000000"])


def test_the_thousandth_commit_costs_the_storage_what_the_first_did(local_run: RunFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "given", {"x": b"x"})
    retention = Retention(local_run, CheckpointConfig(num_to_keep=3))
    hits = []
    for index in range(300):
        with armed() as counted:
            retention.remember(save(local_run, folder, index))
            retention.apply()
        hits.append(len(counted.hits))
        assert len(local_run.folder_names()) <= 4
    assert max(hits[10:]) == min(hits[10:])
    assert {entry.path for entry in local_run.location.listing()} == {"checkpoints", "run.json"}
