"""Where the processes of workers are: asked of the kernel, so that one that is stuck in an extension answers too."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

from turnout.infra.ray.actor import STACK_SIGNAL, GroupActor, Hello

__all__ = ["stacks_of"]

_ANSWER_S = 0.4  # of a process
_AGAIN_S = 0.01
_NODE_S = 3.0  # of another node


def stacks_of(hellos: Mapping[int, Hello]) -> dict[int, str]:
    """What `faulthandler` writes in each process, by rank; those that do not answer are left out.

    Args:
        hellos: of the processes, by rank.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    own = ray.get_runtime_context().get_node_id()
    nodes: dict[str, dict[int, Hello]] = {}
    for rank, hello in hellos.items():
        nodes.setdefault(hello.node_id, {})[rank] = hello
    elsewhere = []
    for node, there in nodes.items():
        if node != own:
            strategy: Any = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(stacks_here).options(num_cpus=0, scheduling_strategy=strategy)
            elsewhere.append(task.remote(there))
    stacks = stacks_here(nodes.get(own, {}))
    with contextlib.suppress(ray.exceptions.RayError):  # a node that does not answer has nothing to say
        ready, _ = ray.wait(elsewhere, num_returns=len(elsewhere), timeout=_NODE_S) if elsewhere else ([], [])
        for each in ray.get(ready):
            stacks |= each
    return stacks


def stacks_here(hellos: Mapping[int, Hello]) -> dict[int, str]:
    """The same for processes of this node."""
    sizes: dict[int, int] = {}
    for rank, hello in hellos.items():
        with contextlib.suppress(OSError):
            with open(f"/proc/{hello.pid}/cmdline", "rb") as file:
                if not file.read().startswith(f"ray::{GroupActor.__name__}".encode()):
                    continue  # its number is another's by now
            sizes[rank] = os.stat(_file(hello)).st_size
            os.kill(hello.pid, STACK_SIGNAL)
    stacks: dict[int, str] = {}
    deadline = time.monotonic() + _ANSWER_S
    while len(stacks) < len(sizes) and time.monotonic() < deadline:
        time.sleep(_AGAIN_S)
        for rank, before in sizes.items():
            if rank not in stacks and (text := _written(hellos[rank], before)):
                stacks[rank] = text
    return stacks


def _written(hello: Hello, before: int) -> str:
    """What a process has written since; empty while it may still be writing."""
    with contextlib.suppress(OSError):
        size = os.stat(_file(hello)).st_size
        if size > before:
            time.sleep(_AGAIN_S)
            if os.stat(_file(hello)).st_size == size:
                with open(_file(hello), encoding="utf-8", errors="replace") as file:
                    file.seek(before)
                    return file.read()
    return ""


def _file(hello: Hello) -> str:
    return f"/proc/{hello.pid}/fd/{hello.stacks}"
