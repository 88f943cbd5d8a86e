"""The peer, Ray Train, in a virtual environment of its own, so that neither side pays for what the other needs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.processes import ROOT

__all__ = ["answer_of", "python", "versions"]

_HOME = ROOT / ".venv-peer"
_CONSTRAINTS = ROOT / "constraints.txt"
_REQUIREMENTS = ("ray[train]==2.60.0", "torch==2.13.0", "numpy")


@cache
def python() -> Path:
    """The peer's interpreter; its environment is built first where it is missing, half-built or out of date.

    Raises:
        subprocess.CalledProcessError: the environment cannot be built.
    """
    marker = _HOME / ".ready"
    executable = _HOME / "bin" / "python"
    wanted = _fingerprint()
    if not marker.is_file() or marker.read_text() != wanted:
        print("building the peer's environment, once: " + ", ".join(_REQUIREMENTS), file=sys.stderr, flush=True)
        marker.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", _HOME], check=True)
        install = ["-m", "pip", "install", "-qq", "--constraint", str(_CONSTRAINTS), *_REQUIREMENTS]
        subprocess.run([str(executable), *install], check=True)
        marker.write_text(wanted)  # last, so that a build that was cut short counts for nothing
    return executable


def answer_of(*arguments: str | Path) -> Any:  # Any: whatever JSON the program prints
    """Run a program or a snippet (``"-c", code``) in the peer's environment, and return the JSON of its last line.

    Raises:
        RuntimeError: it failed, or printed nothing.
    """
    return processes.answer_of(python(), *arguments)


@cache
def versions() -> dict[str, str]:
    """What is installed there, of what matters."""
    code = (
        "import json; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in ('ray', 'torch')}))"
    )
    found: dict[str, str] = answer_of("-c", code)
    return found


def _fingerprint() -> str:
    wanted = hashlib.sha256(_CONSTRAINTS.read_bytes())
    wanted.update(repr((_REQUIREMENTS, sys.version_info[:3])).encode())
    return wanted.hexdigest()
