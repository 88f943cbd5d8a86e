"""The published contract suite, as the author of a controller runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_TOY = Path(__file__).parent / "toy"


@pytest.mark.timeout(300)
def test_a_controller_of_another_package_passes_the_contract_by_one_line(tmp_path: Path) -> None:
    command = ["--pyargs", "turnout.testing.contract", "--turnout-controller=toy", "-q", "-n", "2"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_TOY)},
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 150


def test_a_controller_that_nobody_knows_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    command = ["--pyargs", "turnout.testing.contract", "--turnout-controller=nobody", "-q"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode != 0
    assert "no controller is named 'nobody'" in done.stdout + done.stderr
