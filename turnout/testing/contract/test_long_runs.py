"""What a run costs at its end is what it cost at its beginning."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import psutil

import turnout
from turnout import RunConfig
from turnout.testing.tracks import Track


def test_many_more_reports_take_no_more_memory(track: Track) -> None:
    # A million where a report is a call; where it is a meeting of ranks, what takes about as long.
    before_that, many, limit_mb = (10_000, 1_000_000, 10) if track.world_size == 1 else (500, 2_500, 1)

    def train() -> int:
        memory = psutil.Process().memory_info
        for step in range(before_that):
            turnout.report({"step": step, "loss": 0.5})
        gc.collect()
        before = memory().rss
        for step in range(many):
            turnout.report({"step": step, "loss": 0.5})
        gc.collect()
        grown: int = memory().rss - before
        return grown

    assert max(track.fit(train).return_values) <= limit_mb * 2**20


def test_d11_two_hundred_reports_cost_next_to_nothing_and_are_all_in_the_history(track: Track, tmp_path: Path) -> None:
    def train() -> float:
        started = time.monotonic()
        for step in range(200):
            turnout.report({"step": step})
        return time.monotonic() - started

    result = track.fit(train, run_config=RunConfig(storage_path=tmp_path))
    assert list(result.metrics_dataframe["step"]) == list(range(200))
    assert max(result.return_values) < (0.1 if track.world_size == 1 else 2)
