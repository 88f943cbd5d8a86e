"""Runs programs one after another in one process, and writes what each has printed as its result.

Started with ``python tests/compat/run.py``, they train with Ray Train; with ``python -m turnout.compat.ray_train
tests/compat/run.py``, with Turnout. Arguments: a file for the results, a folder for storage, and the programs.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"


def result_of(program: str, storage: str) -> Any:
    """What the program's last line says; the error that it ended with, as text."""
    output = io.StringIO()
    sys.argv[1:] = [os.path.join(storage, program)]
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(str(PROGRAMS / f"{program}.py"), run_name="__main__")
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    line = next(each for each in output.getvalue().splitlines() if each.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def main(file: str, storage: str, programs: list[str]) -> None:
    import ray

    if "RAY_ADDRESS" not in os.environ and "TURNOUT_CONTROLLER" not in os.environ:
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    results = {}
    for program in programs:
        started = time.monotonic()
        results[program] = result_of(program, storage)
        sys.stderr.write(f"{program}: {time.monotonic() - started:.1f} s\n")
        Path(file).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
