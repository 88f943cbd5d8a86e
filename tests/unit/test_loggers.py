"""What the ready callbacks show."""

from __future__ import annotations

import io
import tempfile
from typing import Any

import pytest
from rich.console import Console

import turnout
from turnout import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, UserCallback
from turnout.loggers import ProgressLogger


def fit(train_fn: object, callback: UserCallback) -> None:
    run_config = RunConfig(callbacks=[callback])
    DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0), run_config=run_config).fit()  # type: ignore[arg-type]


def test_progress_is_a_heading_and_a_line_a_report_in_columns() -> None:
    output = io.StringIO()

    def train() -> None:
        turnout.report({"epoch": 0, "loss": 0.123456, "detail": {"skipped": 1}})
        with tempfile.TemporaryDirectory() as folder:
            turnout.report({"epoch": 1, "loss": 0.1}, Checkpoint(folder))
        turnout.report({"epoch": 2})

    fit(train, ProgressLogger(console=Console(file=output, width=100)))
    heading, *lines = output.getvalue().splitlines()
    assert heading.split() == ["epoch", "loss", "seconds", "checkpoint"]
    assert [line.split()[:2] for line in lines[:2]] == [["0", "0.1235"], ["1", "0.1"]]
    assert lines[1].endswith("checkpoint_000000")
    assert len(lines) == 3


def test_progress_shows_the_columns_and_reports_that_it_is_asked_for() -> None:
    output = io.StringIO()

    def train() -> None:
        for step in range(10):
            turnout.report({"step": step, "loss": 1.0})

    fit(train, ProgressLogger(columns=["step"], every=4, console=Console(file=output, width=100)))
    assert [line.split()[0] for line in output.getvalue().splitlines()] == ["step", "0", "4", "8"]


@pytest.mark.parametrize("arguments", [{"every": 0}, {"every": "x"}, {"columns": "loss"}, {"columns": [1]}])
def test_progress_refuses_what_cannot_be_meant(arguments: dict[str, Any]) -> None:
    with pytest.raises(turnout.UsageError, match=next(iter(arguments))):
        ProgressLogger(**arguments)


def test_progress_shows_a_failure() -> None:
    output = io.StringIO()

    def train() -> None:
        raise ValueError("[bold]cause[/bold]")

    with pytest.raises(ValueError, match="cause"):
        fit(train, ProgressLogger(console=Console(file=output, width=100)))
    assert output.getvalue() == "rank 0 failed: ValueError: [bold]cause[/bold]\n"
