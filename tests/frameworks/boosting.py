"""What the tests of XGBoost and LightGBM share: data, and programs that lack a framework or have an old one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import turnout

ROUNDS = 10
Array = npt.NDArray[Any]


def rows(seed: int = 0, num_rows: int = 200) -> tuple[Array, Array]:
    """Features, and labels that come of them with some noise."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_rows, 5)).astype(np.float32)
    labels = features[:, 0] + features[:, 1] * features[:, 2] + random.normal(scale=0.3, size=num_rows) > 0
    return features, labels.astype(np.float32)


def share() -> tuple[Array, Array]:
    """This rank's half of them, or all."""
    context = turnout.get_context()
    features, labels = rows()
    mine = slice(context.get_world_rank(), None, context.get_world_size())
    return features[mine].copy(), labels[mine].copy()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What may take no longer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def output_of(program: str, folder: Path) -> str:
    """What a program prints that finds the modules in ``folder`` first."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{root}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "{framework}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""

MISSING = """
import turnout
from turnout.{framework} import ReportCallback, {trainer}
for call in (
    ReportCallback,
    lambda: ReportCallback.get_model(turnout.Checkpoint(".")),
    {trainer}(lambda: None, scaling_config=turnout.ScalingConfig(num_workers=0)).fit,
    {trainer}(lambda: None, scaling_config=turnout.ScalingConfig(2, controller="process"),
        run_config=turnout.RunConfig(storage_path="runs", logging_config=turnout.LoggingConfig("ERROR"))).fit,
):
    try:
        call()
    except turnout.MissingDependencyError as error:
        print(str(error))
"""


def refusals_without(framework: str, trainer: str, folder: Path) -> list[str]:
    """What is said where the framework is not installed."""
    program = BLOCKED.format(framework=framework)
    # The server that forks ranks, and the ranks, are fresh interpreters: they run what is blocked there first.
    (folder / "sitecustomize.py").write_text(program)
    return output_of(program + MISSING.format(framework=framework, trainer=trainer), folder).splitlines()


def refusals_with_version(version: str, framework: str, trainer: str, folder: Path) -> list[str]:
    """What is said where the framework is installed in this version."""
    (folder / f"{framework}.py").write_text(f"__version__ = {version!r}\n")
    return output_of(MISSING.format(framework=framework, trainer=trainer), folder).splitlines()
