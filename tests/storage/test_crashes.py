"""Drivers are killed at each step of the protocol and at random moments: nothing is lost, nothing torn is offered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def crash(folder: Path, *arguments: str, report: Any) -> dict[str, Any]:
    script = str(Path(__file__).with_name("crash_loop.py"))
    done = subprocess.run(
        [sys.executable, script, str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=55,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    report("crashes", json.dumps(found))
    sys.stdout.write(f"{found}\n")
    assert found["missed"] == [], done.stderr
    return found


def test_a_kill_at_each_step_loses_nothing_and_offers_nothing_torn(tmp_path: Path, record_property: Any) -> None:
    found = crash(tmp_path, "1", "points", report=record_property)
    assert found["kills"] >= 50
    assert found["commits"] > found["kills"]
    assert found["lost"] == []
    assert found["torn"] == []


@pytest.mark.parametrize("seed", ["a", "b", "c", "d"])
def test_kills_at_random_moments_lose_nothing_and_offer_nothing_torn(
    tmp_path: Path, record_property: Any, seed: str
) -> None:
    found = crash(tmp_path, seed, "random", "50", report=record_property)
    assert found["kills"] == 50
    assert found["lost"] == []
    assert found["torn"] == []
    assert found["commits"] > 0
