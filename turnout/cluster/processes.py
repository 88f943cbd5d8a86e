"""Processes of actors on this machine, for the one thing that Ray leaves undone."""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["kill_actor_process"]


def kill_actor_process(pid: int, class_name: str) -> None:
    """Kill the process of an actor on this node, if it is one: number ``pid`` may be another's where this program is.

    Args:
        pid: its process.
        class_name: of the actor; Ray names its process for it.
    """
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            is_it = file.read().startswith(f"ray::{class_name}".encode())
        if is_it:
            os.kill(pid, signal.SIGKILL)
