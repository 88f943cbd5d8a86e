"""What a forked rank does before and after the train function: it becomes a process of its own, and ends like one."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import logging
import multiprocessing.util
import os
import signal
import sys
import time
import traceback
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from turnout.controllers.travel import loads
from turnout.controllers.wire import Address, WireChannel
from turnout.environment import WORKER_VARIABLE
from turnout.errors import WorkerGroupError
from turnout.session.channel import Channel
from turnout.session.events import Failed, RankInfo

__all__ = ["Launch", "Work", "become_rank", "die_with"]

_PACKAGE = __name__.partition(".")[0]
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_AGAIN_S = 0.01
_OWN_ROOMS = tuple(f"{_PACKAGE}.{room}." for room in ("controllers", "runtime", "session", "storage", "trainer"))


class Work(NamedTuple):
    """What a rank runs.

    Args:
        run: is called with the channel.
        function: the train function's own, if it is one.
    """

    run: Callable[[Channel], None]
    function: Any  # mypy takes a function in a class for a method


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the ranks of one attempt begin with.

    Args:
        ranks: who they are.
        address: of the coordinator.
        work: the `Work` of each, pickled.
        environment: all variables, but for those of each rank.
        directory: to work in.
        arguments: for ``sys.argv``.
        path: for ``sys.path``.
    """

    ranks: list[RankInfo]
    address: Address
    work: bytes
    environment: dict[str, str]
    directory: str
    arguments: list[str]
    path: list[str]


def die_with(parent: int) -> None:
    """End this process when ``parent``, which forked it, ends; it may have done so already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_rank(launch: Launch, rank: int, output: int) -> NoReturn:
    """Run the rank's work on this thread, which is the main one, and exit."""
    ranks = launch.ranks[rank]
    _take_streams(output)
    _show_warnings()
    try:
        _take_surroundings(launch, ranks)
        channel = WireChannel(launch.address, ranks)
        channel.answer_where()
        _end_when_told(channel)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    status = 1
    try:
        work = _received(launch.work, channel)
        if work is not None:
            _fill_main(work.function)
            work.run(channel)
            status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except KeyboardInterrupt:
        status = 130  # as a shell tells of it
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(channel, status)


def _take_streams(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    for name, handle in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(handle, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show_warnings() -> None:
    """Turnout's own warnings go to the rank's standard error, which the driver shows, whatever it has configured."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s turnout: %(message)s"))
    handler.addFilter(lambda record: not logging.root.hasHandlers())  # else the train function has configured them
    logging.getLogger(_PACKAGE).addHandler(handler)


def _take_surroundings(launch: Launch, ranks: RankInfo) -> None:
    """The driver's surroundings, so that the function finds what it would find there."""
    _forget_exits()
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(launch.environment)
    os.environ.update(
        RANK=str(ranks.rank),
        WORLD_SIZE=str(ranks.world_size),
        LOCAL_RANK=str(ranks.local_rank),
        LOCAL_WORLD_SIZE=str(ranks.local_world_size),
        NODE_RANK=str(ranks.node_rank),
    )
    os.environ[WORKER_VARIABLE] = "1"
    os.chdir(launch.directory)
    sys.argv[:] = launch.arguments
    sys.path[:] = launch.path
    # The user's script is not imported again: what it defines comes by value, into an empty module.
    sys.modules["__main__"] = types.ModuleType("__main__")
    if "numpy" in sys.modules:
        # Every rank would draw the same numbers. Python's own generator is seeded again by the fork, and torch's begins
        # with the same seed in every fresh process anyway.
        sys.modules["numpy"].random.seed()


def _forget_exits() -> None:
    """What the server would do at its end is not a rank's to do; what the train function registers is done at its own.

    Finalizers, as of temporary folders, register themselves with the first one, which may have been the server's.
    """
    atexit._clear()
    finalizers: Any = weakref.finalize  # its registry has no public name
    for each in list(finalizers._registry):
        each.atexit = False
    finalizers._registered_with_atexit = False


def _received(data: bytes, channel: WireChannel) -> Work | None:
    try:
        work: Work = loads(data)
    except Exception as error:  # whatever the import of a module of the user's raises
        error.add_note("raised on the rank while the train function was received, before it was called")
        channel.publish(Failed(channel.ranks.rank, error, "while the train function was received"))
        return None
    return work


def _fill_main(function: types.FunctionType | None) -> None:
    """What the function uses of the user's script stands in the rank's own ``__main__``, where pickle looks for it.

    So the rank's children, such as a pool's, can be sent what is defined there.
    """
    if function is not None and function.__module__ == "__main__":
        given = {name: value for name, value in function.__globals__.items() if not name.startswith("__")}
        vars(sys.modules["__main__"]).update(given)


def _end_when_told(channel: WireChannel) -> None:
    """SIGTERM from the driver unwinds the train function; it is killed if that takes too long.

    It raises in the user's code and not in Turnout's own, where it could cut a message, or lose a report that the other
    ranks know of: there it comes again a moment later. Whoever waits for other ranks there is told so by the driver.
    """
    rank = os.getpid()

    def end(number: int, frame: types.FrameType | None) -> None:
        if os.getpid() != rank:  # a child of the rank's, such as a data loader's worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif channel.broken is None and _is_users(frame):
            raise WorkerGroupError("this rank was told to end")
        elif channel.broken is None:
            _thread.start_new_thread(again, ())  # threading's own takes a lock, which this thread may hold

    def again() -> None:
        time.sleep(_AGAIN_S)
        os.kill(rank, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def _is_users(frame: types.FrameType | None) -> bool:
    """Whether the train function is being run, and nothing of Turnout's that it has called."""
    are_ours = []
    while frame is not None and frame.f_code is not become_rank.__code__:
        are_ours.append(frame.f_globals.get("__name__", "").startswith(_OWN_ROOMS))
        frame = frame.f_back
    while are_ours and are_ours[-1]:  # what leads to the train function
        are_ours.pop()
    return bool(are_ours) and not any(are_ours)


def _leave(channel: WireChannel, status: int) -> NoReturn:
    """End as an interpreter does, but for threads that the train function has left behind: nobody waits for them."""
    if channel.is_own:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway; if that takes too long it is killed
    try:
        atexit._run_exitfuncs()
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]  # as its own children do
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        channel.close()
    finally:
        os._exit(status)
