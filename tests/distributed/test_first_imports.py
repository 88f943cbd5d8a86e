"""What workers import first is there before anything of the user's, and a worker without it does not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import turnout
import user
from turnout.first_imports import import_first

import_first({module!r})
scaling = turnout.ScalingConfig(num_workers=1, controller="process")
trainer = turnout.DataParallelTrainer(
    user.train, scaling_config=scaling,
    run_config=turnout.RunConfig(storage_path={storage!r}, failure_config=turnout.FailureConfig(0, 0)),
)
try:
    print(user.train(), trainer.fit().return_value)
except turnout.ControllerError as error:
    print(error)
"""


def run(folder: Path, module: str) -> subprocess.CompletedProcess[str]:
    folder.joinpath("hook.py").write_text("")
    folder.joinpath("user.py").write_text("import sys\ntold = 'hook' in sys.modules\ndef train(): return told\n")
    program = PROGRAM.format(root=str(ROOT), module=module, storage=str(folder / "storage"))
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=55,
        check=True,
    )


def test_a_worker_has_imported_it_before_it_is_sent_the_function(tmp_path: Path) -> None:
    assert run(tmp_path, "hook").stdout.split() == ["False", "True"]  # as the driver has not imported it itself


def test_a_worker_that_cannot_import_it_is_not_started(tmp_path: Path) -> None:
    done = run(tmp_path, "no_such_hook")
    assert "did not start; what it said is on the standard error" in done.stdout
    assert "No module named 'no_such_hook'" in done.stderr
