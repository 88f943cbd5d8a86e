"""pdb and pytest's `--pdb` stop in the user's own frame."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import turnout

def train():
    secret = "from the " + "user's frame"
    {line}
    turnout.report({{"x": 1}})

def test_train():
    turnout.DataParallelTrainer(train, scaling_config=turnout.ScalingConfig(num_workers=0)).fit()

if __name__ == "__main__":
    test_train()
    import sys
    print("ray" in sys.modules)
"""


def run(*command: str, cwd: Path, keys: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, input=keys, capture_output=True, text=True, timeout=50
    )
    return done.stdout + done.stderr


def test_pytest_pdb_stops_in_the_users_frame(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM.format(line="raise ValueError('cause')"))
    keys = "p secret\np __name__\nq\n"
    output = run("-m", "pytest", "--pdb", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path, keys=keys)
    assert '(Pdb) "from the user\'s frame"' in output
    assert "-> raise ValueError('cause')" in output


def test_a_breakpoint_in_the_function_works(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(line="breakpoint()"))
    output = run("program.py", cwd=tmp_path, keys="p secret\nc\n")
    assert '(Pdb) "from the user\'s frame"' in output
    assert output.splitlines()[-1].endswith("False") or "\nFalse\n" in output or "(Pdb) False" in output


def test_an_interrupt_leaves_an_in_process_fit_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(line="import os, signal; os.kill(os.getpid(), signal.SIGINT)"))
    output = run("program.py", cwd=tmp_path, keys="")
    assert output.rstrip().endswith("KeyboardInterrupt")
