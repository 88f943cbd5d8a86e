"""Groups on a Ray cluster of two nodes that say they have 8 GPUs each: a program does everything once, and tells.

Each test is one behaviour, a function of `ray_program.py`.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("ray_program.py")
BEHAVIOURS = [
    each.name.removeprefix("check_")
    for each in ast.parse(PROGRAM.read_text()).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("check_")
]
_LONGEST_S = 280


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in each behaviour; nothing, in one that holds."""
    report = tmp_path_factory.mktemp("report") / "report.json"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.infra.ray_program", str(report)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=_LONGEST_S,
        check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    told: dict[str, str] = json.loads(report.read_text())
    return told


@pytest.mark.timeout(_LONGEST_S + 20)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_on_ray(outcome: dict[str, str], behaviour: str) -> None:
    assert outcome.get(behaviour, "the program has not come to it") == ""
