"""Which process on which host: what a file must say of its owner so that others can tell whether it is still there.

A process number alone is no name: numbers are used again, and two containers on one network disk may share a host name.
So a host is its name, its boot and its process namespace, and a process is its number and the moment that it started.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

__all__ = ["ProcessIdentity", "host_identity", "is_exiting", "process_state"]

_PF_EXITING = 0x4  # of the flags in proc(5)'s stat, as Linux' sched.h has them


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, named such that no later one is taken for it.

    Args:
        host: what `host_identity` says on its host.
        pid: its number.
        started: when it started, in the kernel's own ticks since boot; 0 where the system does not say.
    """

    host: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The calling process."""
        return cls(host_identity(), os.getpid(), _stat(os.getpid())[1])

    @property
    def is_on_this_host(self) -> bool:
        """Whether its life can be asked for from here."""
        return self.host == host_identity()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, or is stopped; asked of the system, and so only for a process on this host."""
        state, started = _stat(self.pid)
        return state not in ("", "Z", "X") and (not self.started or not started or self.started == started)

    @property
    def is_stopped(self) -> bool:
        """Whether it lives but has been stopped, and so does nothing until it is continued."""
        return self.is_alive and _stat(self.pid)[0] in ("T", "t")


def host_identity() -> str:
    """This host's name, boot and process namespace, as far as the system tells them."""
    parts = [socket.gethostname()]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass
    return " ".join(parts)


def process_state(pid: int) -> str:
    """The letter that the kernel gives the process's state; empty if there is no such process."""
    return _stat(pid)[0]


def is_exiting(pid: int) -> bool:
    """Whether the process has begun to end, also while its files are still open; False where nobody says."""
    try:
        return bool(int(_fields(pid)[6]) & _PF_EXITING)
    except (OSError, ValueError, IndexError):
        return False


def _stat(pid: int) -> tuple[str, int]:
    """State and start of a process; ("", 0) if it is gone, ("R", 0) where the system tells its existence only."""
    try:
        fields = _fields(pid)
        return fields[0].decode(), int(fields[19])
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return "", 0
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "", 0
    except PermissionError:
        pass
    return "R", 0


def _fields(pid: int) -> list[bytes]:
    """The fields of proc(5)'s stat from the state on; the name before it, in parentheses, may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
