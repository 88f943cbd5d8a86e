"""What a figure was measured on: the machine and the versions, without anything that names the machine itself."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import disk, peer

__all__ = ["describe_machine", "describe_versions"]


def describe_machine() -> dict[str, str]:
    """The CPU's model, how many cores this process may use, the memory, the disk's filesystem, the operating system."""
    system = platform.system()
    if system == "Linux":
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
        kernel = ".".join(platform.release().split(".")[:2])
        system = f"{distribution}, Linux {kernel}"
    facts = {"cpu": _cpu_model(), "cores": str(_num_cores()), "memory": _memory()}
    return {**facts, "disk": disk.filesystem_type(), "os": system}


def describe_versions() -> dict[str, str]:
    """Of Python, of Turnout and what it stands on, and of the peer."""
    return {
        "python": platform.python_version(),
        "turnout": version("turnout"),
        "torch": version("torch"),
        **{f"{name} (peer)": found for name, found in peer.versions().items()},
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _memory() -> str:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{size / 2**30:.0f} GiB"
