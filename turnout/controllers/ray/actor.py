"""`RankActor`: the process of one rank on a Ray cluster, from its start to the train function and to its end.

Ray calls an actor's constructor on the main thread of its process and, since it may have two calls at once, everything
else on threads of its own: one runs the train function, the other tells it to end.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import multiprocessing.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from turnout.cluster.seats import Whereabouts
from turnout.controllers.placed import (
    fill_main,
    forget_exits,
    is_in_users_code,
    rank_variables,
    received,
    show_warnings,
    take_empty_main,
)
from turnout.controllers.ray.output import Output
from turnout.controllers.wire import WireChannel
from turnout.controllers.work import Launch
from turnout.errors import UsageError, WorkerGroupError
from turnout.first_imports import import_all
from turnout.session.events import RankInfo

__all__ = ["RankActor"]

_AGAIN_S = 0.01
_LOST_S = 0.5  # from the driver's end to the rank's


class RankActor:
    """One rank.

    Args:
        preload: modules to import here, on the main thread: torch does not bear to be imported by two at once.
        first: what must be imported before anything else.
    """

    def __init__(self, preload: Iterable[str], first: Iterable[str] = ()) -> None:
        self._thread: int | None = None
        """That runs the train function, while one does."""
        self._channel: WireChannel | None = None
        import_all(first)
        for module in preload:
            with contextlib.suppress(Exception):  # the train function that needs it says what is wrong with it
                importlib.import_module(module)

    def whereabouts(self) -> Whereabouts:
        """Where this process is."""
        import ray

        context = ray.get_runtime_context()
        given = {kind: tuple(map(str, each)) for kind, each in context.get_accelerator_ids().items()}
        devices = tuple(each for kind in given.values() for each in kind)
        node = context.get_node_id()
        return Whereabouts(node, ray.util.get_node_ip_address(), os.getpid(), devices, given.get("GPU", ()))

    def run(self, launch: Launch, rank: int) -> None:
        """Be a rank; returns when everything that it has to say is said.

        Raises:
            OSError: the driver cannot be reached from here.
        """
        ranks = launch.ranks[rank]
        threading.current_thread().name = f"rank {rank}"
        _take_surroundings(launch, ranks)
        _show_gpus(launch.gpus[rank])
        channel = self._channel = WireChannel(launch.address, ranks)
        channel.answer_where()
        channel.tell_of_crashes()
        output = Output(channel, _end_without_driver)
        show_warnings()
        signal.signal = _refusing(signal.signal)
        try:
            work = received(launch.work, channel, _told_of_import)
            if work is not None:
                fill_main(work.function)
                self._thread = threading.get_ident()
                work.run(channel, *launch.shares[rank : rank + 1])
        except (SystemExit, KeyboardInterrupt):  # it has told of them
            pass
        finally:
            self._thread = None
            atexit._run_exitfuncs()
            multiprocessing.util._exit_function()  # type: ignore[attr-defined]  # as its own children do
            _kill_children()
            output.drain()

    def end(self) -> None:
        """The attempt has failed: raise in the train function, if it is in the user's code or as soon as it is.

        Not in Turnout's own, where it could cut a message, or lose a report that the other ranks know of. Whoever waits
        for other ranks there is told so by the driver.
        """
        while (thread := self._thread) is not None:
            if self._channel is not None and self._channel.broken is not None:
                return
            if is_in_users_code(sys._current_frames().get(thread), RankActor.run.__code__):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_ToldToEndError))
                return
            time.sleep(_AGAIN_S)


class _ToldToEndError(WorkerGroupError):
    """What `RankActor.end` raises: by its class, as Python makes the exception there."""

    def __init__(self) -> None:
        super().__init__("this rank was told to end")


def _refusing(set_handler: Callable[..., Any]) -> Callable[..., Any]:
    """`signal.signal` with a reason where Python has none to give."""

    def refuse_off_main_thread(number: int, handler: Any) -> Any:  # Any: as `signal.signal` takes and returns them
        if threading.current_thread() is threading.main_thread():
            return set_handler(number, handler)
        raise UsageError(
            f"signal.signal({signal.Signals(number).name}, ...): handlers are set on the main thread of a process, and "
            "that is Ray's here: the train function runs beside it. On the other tracks it runs on the main thread"
        )

    return refuse_off_main_thread


def _take_surroundings(launch: Launch, ranks: RankInfo) -> None:
    """Those of the driver's that the function may count on, as far as they are here."""
    import ray

    forget_exits()
    os.environ.update(launch.environment)
    os.environ.update(rank_variables(ranks))
    brought = ray.get_runtime_context().runtime_env
    if "working_dir" not in brought:
        with contextlib.suppress(OSError):  # another node may not have it
            os.chdir(launch.directory)
    sys.argv[:] = launch.arguments
    known = set(sys.path)
    more = [path for path in launch.path if path not in known and os.path.exists(path)]
    # Code that the user has sent along comes before what only lies here by chance.
    sys.path[:] = sys.path + more if {"working_dir", "py_modules"} & set(brought) else more + sys.path
    take_empty_main()


def _show_gpus(gpus: Sequence[str]) -> None:
    """Let this process see these of its node's GPUs, by the variable of their maker's that Ray would set."""
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager = get_accelerator_manager_for_resource("GPU")
    name = manager.get_visible_accelerator_ids_env_var() if manager is not None else None
    if name is not None:
        os.environ[name] = ",".join(gpus)


def _told_of_import(error: ImportError) -> str:
    """What there is to say of a module that this node lacks."""
    import ray

    return (
        f"{error} on node {ray.util.get_node_ip_address()}, where the train function was received; "
        'RunConfig(worker_runtime_env={"working_dir": ...}) takes the user\'s own modules along, and {"pip": [...]} '
        "installs packages"
    )


def _end_without_driver() -> None:
    """Nobody waits for this rank any more."""
    time.sleep(_LOST_S)
    _kill_children()
    os._exit(1)


def _kill_children() -> None:
    """Kill every process that comes of this one."""
    for pid in list(_descendants(os.getpid())):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended, or this system has no such files
        return
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            for child in map(int, file.read().split()):
                yield child
                yield from _descendants(child)
