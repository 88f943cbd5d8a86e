"""What a run costs at its end is what it cost at its beginning."""

from __future__ import annotations

import gc

import psutil

import turnout
from tests.contract.tracks import Track


def test_a_million_reports_take_no_more_memory_than_ten_thousand(track: Track) -> None:
    def train() -> int:
        memory = psutil.Process().memory_info
        for step in range(10_000):
            turnout.report({"step": step, "loss": 0.5})
        gc.collect()
        before = memory().rss
        for step in range(1_000_000):
            turnout.report({"step": step, "loss": 0.5})
        gc.collect()
        grown: int = memory().rss - before
        return grown

    assert track.fit(train).return_value < 10 * 2**20
