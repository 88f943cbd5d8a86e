"""What is set up for a run is undone at its end, in the process that it ran in."""

from __future__ import annotations

import pytest

from turnout import DataParallelTrainer, ScalingConfig
from turnout.session import active


def test_what_was_set_up_is_undone_at_the_end_of_the_run_the_last_first() -> None:
    undone: list[str] = []

    def train() -> None:
        active().at_end(lambda: undone.append("first"))
        active().at_end(lambda: undone.append("second"))
        assert undone == []

    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()
    assert undone == ["second", "first"]


def test_what_cannot_be_undone_is_told_and_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        active().at_end(lambda: 1 / 0)
        raise LookupError("the cause")

    with pytest.raises(LookupError, match="the cause"):
        DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()
    assert "could not undo all that was set up" in caplog.text
