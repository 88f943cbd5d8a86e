"""Where the processes of workers are: asked of the kernel, so that one that is stuck in an extension answers too.

On another node a process must be started to ask, which takes seconds. So it is asked for before the time has come.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

from turnout.infra.ray.actor import STACK_SIGNAL, GroupActor, Hello

__all__ = ["Lookouts", "stacks_of"]

_ANSWER_S = 0.4  # of a process
_AGAIN_S = 0.01
_NODE_S = 3.0  # of another node


class Lookouts:
    """Processes on other nodes that look where workers are when the time has come.

    Args:
        hellos: of the workers' processes, by rank.
        in_s: seconds until then.
    """

    def __init__(self, hellos: Mapping[int, Hello], in_s: float) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        own = ray.get_runtime_context().get_node_id()
        nodes: dict[str, dict[int, Hello]] = {}
        for rank, hello in hellos.items():
            nodes.setdefault(hello.node_id, {})[rank] = hello
        nodes.pop(own, None)
        self._refs = []
        for node, there in nodes.items():
            strategy: Any = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(_stacks_there).options(num_cpus=0, scheduling_strategy=strategy)
            self._refs.append(task.remote(there, time.time() + in_s, in_s))

    def stacks(self) -> dict[int, str]:
        """What they have seen, by rank; a node that does not answer has nothing to say."""
        import ray

        stacks: dict[int, str] = {}
        with contextlib.suppress(ray.exceptions.RayError):
            ready, _ = ray.wait(self._refs, num_returns=len(self._refs), timeout=_NODE_S) if self._refs else ([], [])
            for each in ray.get(ready):
                stacks |= each
        return stacks


def stacks_of(hellos: Mapping[int, Hello], lookouts: Lookouts | None = None) -> dict[int, str]:
    """What `faulthandler` writes in each process, by rank; those that do not answer are left out.

    Args:
        hellos: of the processes, by rank.
        lookouts: that were sent to the other nodes before; None to send them now.
    """
    import ray

    own = ray.get_runtime_context().get_node_id()
    lookouts = Lookouts(hellos, 0.0) if lookouts is None else lookouts
    stacks = _stacks_here({rank: hello for rank, hello in hellos.items() if hello.node_id == own})
    return stacks | {rank: stack for rank, stack in lookouts.stacks().items() if rank in hellos}


def _stacks_there(hellos: Mapping[int, Hello], at: float, in_s: float) -> dict[int, str]:
    """The stacks of this node's at a time of the driver's clock, or after so many seconds if this one's is behind."""
    time.sleep(max(0.0, min(at - time.time(), in_s)))
    return _stacks_here(hellos)


def _stacks_here(hellos: Mapping[int, Hello]) -> dict[int, str]:
    """What `faulthandler` writes in processes of this node."""
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
