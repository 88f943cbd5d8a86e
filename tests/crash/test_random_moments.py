"""Killed at random moments, from the first instant of the program to the middle of a commit."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lane import Lane, Tally

NUM_KILLS = 50  # in each of the four ways to train
KILLS_PER_RUN = 10  # every audit reads all that a run has


@pytest.mark.parametrize(
    ("seed", "plan"),
    [
        (1, {"mode": "SYNC"}),
        (2, {"mode": "SYNC", "num_to_keep": 2}),
        (3, {"mode": "ASYNC"}),
        (4, {"mode": "MIXED", "num_to_keep": 3, "by_score": True, "lease_s": 1.0}),
    ],
    ids=["sync", "sync-keeps-2", "async", "mixed-keeps-best-3"],
)
def test_a_run_that_is_killed_again_and_again_loses_nothing_and_offers_nothing_torn(
    tmp_path: Path, tally: Tally, seed: int, plan: dict[str, Any]
) -> None:
    moments = random.Random(seed)
    lane = Lane(tmp_path / "0", tally, **plan)
    for kill in range(NUM_KILLS):
        if kill % KILLS_PER_RUN == 0:
            lane = Lane(tmp_path / str(kill), tally, **plan)
        with lane.start() as process:
            assert process.stdout is not None
            if moments.random() < 0.25:
                time.sleep(moments.uniform(0.05, 0.2))  # the random moment itself: nothing is waited for
            else:
                process.stdout.readline()
                time.sleep(moments.uniform(0.0, 0.06))
            lane.kill(process, "at random moments")
        lane.audit()
        if kill % KILLS_PER_RUN == KILLS_PER_RUN - 1:
            newest = lane.audit().newest
            assert lane.live(num_steps=3) == 0, lane.output
            assert lane.audit().newest == newest + 3
