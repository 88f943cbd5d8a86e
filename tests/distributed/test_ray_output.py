"""What ranks on Ray print: every line once, on the console and in the rank's log, and no report waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.distributed.on_ray import fit
from tests.distributed.within import rank

pytestmark = pytest.mark.usefixtures("cluster")


def log_of(result: Any, number: int) -> list[str]:
    return Path(result.path, "logs", f"rank_{number}.log").read_text().splitlines()


def test_every_line_is_shown_once_and_kept_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        import logging

        for number in range(50):
            sys.stdout.write(f"line {number} of {rank()}\n")
        logging.getLogger("of the user's").warning("a warning of %d", rank())

    result = fit(train, tmp_path)
    shown = capsys.readouterr().out.splitlines()
    for each in range(2):
        lines = [f"line {number} of {each}" for number in range(50)] + [f"a warning of {each}"]
        assert log_of(result, each) == lines
        assert [line for line in shown if line.startswith(f"[rank {each}] ")] == [f"[rank {each}] {x}" for x in lines]


def test_what_is_not_python_s_own_print_comes_too(tmp_path: Path) -> None:
    def train() -> None:
        os.write(1, b"by the descriptor\n")
        subprocess.run(["sh", "-c", "echo by a child; echo by its error >&2; echo by name > /dev/stdout"], check=True)
        if (child := os.fork()) == 0:
            sys.stdout.write("by a forked copy\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        sys.stderr.write("by the error stream\n")
        sys.stdout.write("a line that does not end")

    lines = log_of(fit(train, tmp_path, num_workers=1), 0)
    assert sorted(lines) == sorted(
        [
            "by the descriptor",
            "by a child",
            "by its error",
            "by name",
            "by a forked copy",
            "by the error stream",
            "a line that does not end",
        ]
    )


def test_a_rank_that_prints_100_000_lines_holds_up_no_report_and_loses_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: int) -> float:
        turnout.report({"i": 0})
        started = time.monotonic()
        if rank() == 1:
            for number in range(config):
                sys.stdout.write(f"line {number}\n")
        took_s = time.monotonic() - started
        turnout.report({"i": 1})
        return took_s

    result = fit(train, tmp_path, config=100_000)
    assert log_of(result, 1) == [f"line {number}" for number in range(100_000)]
    assert result.return_values[1] < 10
    assert capsys.readouterr().out.count("[rank 1] line ") == 100_000


def test_a_line_of_ten_megabytes_arrives_whole(tmp_path: Path) -> None:
    def train() -> None:
        sys.stdout.write("x" * 10_000_000 + "\n")

    (line,) = log_of(fit(train, tmp_path, num_workers=1), 0)
    assert len(line) == 10_000_000
