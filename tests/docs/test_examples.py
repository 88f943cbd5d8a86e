"""Every example runs to the result that it promises, and every program in the README runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_digits_reads_held_out_digits() -> None:
    output = run("examples/digits.py")
    accuracy = re.search(r"accuracy\s+│ (\d\.\d+)", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) > 0.95
    assert "Next:" in output


def programs(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


README = programs("README.md")


@pytest.mark.parametrize("number", range(len(README)))
def test_a_program_of_the_readme_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    name = "test_readme.py" if "def test_" in README[number] else "program.py"
    (tmp_path / name).write_text(README[number])
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", name) if name.startswith("test_") else (name,)
    run(*arguments, cwd=tmp_path)


def test_the_readme_has_programs() -> None:
    assert len(README) >= 2
