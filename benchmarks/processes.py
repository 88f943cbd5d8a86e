"""Programs in fresh interpreters: how they are started alike, and what is taken of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["OWN_PYTHON", "PROGRAMS", "ROOT", "Timing", "answer_of", "time_process"]

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(__file__).resolve().parent / "programs"
OWN_PYTHON = Path(sys.executable)

_LONGEST_S = 600.0
# What would make one interpreter start differently from another, or send a program to another track or cluster.
_STEERING = ("PYTHON", "TURNOUT_", "RAY_", "TORCHELASTIC_")
_STEERING_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a whole process took, in seconds.

    Args:
        wall_s: from before it was started until it was gone.
        cpu_s: user and system time of it and of the children that it waited for.
    """

    wall_s: float
    cpu_s: float

    @property
    def wall_ms(self) -> float:
        """The same in milliseconds."""
        return self.wall_s * 1e3

    @property
    def cpu_ms(self) -> float:
        """The same in milliseconds."""
        return self.cpu_s * 1e3


def time_process(python: Path, *arguments: str | Path) -> Timing:
    """Run a process to its end and take its time; what it prints is dropped.

    Raises:
        RuntimeError: it failed; the text holds the end of what it said.
    """
    command = [str(python), *map(str, arguments)]
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = process.stderr.read()  # to its end, which is the process's end: a program here leaves no child behind
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    _check(arguments, process.returncode, said.decode(errors="replace"))
    return Timing(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime)


def answer_of(python: Path, *arguments: str | Path) -> Any:  # Any: whatever JSON the program prints
    """Run a program, and return the JSON that its last line of output holds.

    Raises:
        RuntimeError: it failed, or printed nothing.
    """
    command = [str(python), *map(str, arguments)]
    with tempfile.TemporaryFile("w+", errors="replace") as said:  # no pipe: a reader would take time from who logs
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            timeout=_LONGEST_S,
            check=False,  # _check says more
        )
        said.seek(0)
        _check(arguments, done.returncode, said.read())
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise RuntimeError(f"{_name_of(arguments)} printed no answer")
    return json.loads(lines[-1])


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_STEERING) and name not in _STEERING_NAMES
    }


def _check(arguments: tuple[str | Path, ...], status: int, said: str) -> None:
    if status != 0:
        raise RuntimeError(f"{_name_of(arguments)} ended with {status}:\n{said[-2000:]}")


def _name_of(arguments: tuple[str | Path, ...]) -> str:
    return " ".join(each.name if isinstance(each, Path) else each for each in arguments)
