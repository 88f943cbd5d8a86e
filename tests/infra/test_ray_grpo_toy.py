"""The example of reinforcement learning on a Ray cluster of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output_of(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_enable_worker_prestart": "0"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "examples/grpo_toy.py", *arguments, "--steps", "12"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(200)
def test_the_numbers_on_ray_are_those_of_one_process_and_sampling_overlaps_training() -> None:
    on_ray, simulated = output_of("ray", "--sampling-seconds", "0.05"), output_of("simulate")
    rewards = [re.findall(r"^step +\d+: reward (\S+)$", output, re.MULTILINE) for output in (on_ray, simulated)]
    assert len(rewards[0]) == 6
    assert rewards[0] == rewards[1]
    overlap = re.search(r"^(\d+)% of the steps were taken while the next batch was sampled$", on_ray, re.MULTILINE)
    assert overlap is not None
    assert int(overlap[1]) >= 50
