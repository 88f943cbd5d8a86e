"""The Keras callback with each backend of Keras's, in a program of its own each, as a process can have one only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.ranks import ROOT


@pytest.mark.parametrize(
    ("backend", "chosen", "num_tests"),
    [("tensorflow", "test_", 14), ("jax", "asked_for or read_back", 2), ("torch", "asked_for or read_back", 2)],
    ids=["tensorflow", "jax", "torch"],
)
def test_the_callback_works_with_each_backend(backend: str, chosen: str, num_tests: int, tmp_path: Path) -> None:
    environment = {**os.environ, "KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, "tests/frameworks/keras_callback.py")
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=58
    )
    assert re.match(rf"{num_tests} passed", done.stdout.splitlines()[-1]), done.stdout + done.stderr
