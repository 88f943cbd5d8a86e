"""The report of the whole suite; its file comes last by name."""

from __future__ import annotations

import pytest

from tests.crash.lane import Tally
from tests.crash.test_random_moments import NUM_KILLS


def test_the_suite_has_killed_at_every_point_and_at_200_moments_and_nothing_was_lost_or_torn(
    tally: Tally, capsys: pytest.CaptureFixture[str]
) -> None:
    if not {"at failpoints", "at random moments"} <= tally.by_kind.keys():
        pytest.skip("only a part of the suite was run")
    with capsys.disabled():
        print(f"\ncrash suite: {tally}")  # noqa: T201  # the report
    assert tally.by_kind["at random moments"] >= 4 * NUM_KILLS - 4, "programs ended by themselves"
    assert tally.mid_commit > 50, "the kills came when nothing was under way"
    assert tally.commits > tally.kills
    assert (tally.lost, tally.torn) == ([], [])
