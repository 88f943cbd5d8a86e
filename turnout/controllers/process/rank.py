"""What a forked rank does before and after the train function: it becomes a process of its own, and ends like one."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import multiprocessing.util
import os
import signal
import sys
import time
import traceback
import types
from typing import NoReturn

from turnout.controllers.placed import (
    fill_main,
    forget_exits,
    is_in_users_code,
    rank_variables,
    received,
    show_warnings,
    take_empty_main,
    take_streams,
)
from turnout.controllers.wire import WireChannel
from turnout.controllers.work import Launch
from turnout.errors import WorkerGroupError
from turnout.session.events import RankInfo

__all__ = ["become_rank", "die_with"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_AGAIN_S = 0.01


def die_with(parent: int) -> None:
    """End this process when ``parent``, which forked it, ends; it may have done so already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_rank(launch: Launch, rank: int, output: int) -> NoReturn:
    """Run the rank's work on this thread, which is the main one, and exit."""
    ranks = launch.ranks[rank]
    take_streams(output)
    show_warnings()
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
        work = received(launch.work, channel)
        if work is not None:
            fill_main(work.function)
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


def _take_surroundings(launch: Launch, ranks: RankInfo) -> None:
    """The driver's surroundings, so that the function finds what it would find there."""
    forget_exits()
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(launch.environment)
    os.environ.update(rank_variables(ranks))
    os.chdir(launch.directory)
    sys.argv[:] = launch.arguments
    sys.path[:] = launch.path
    take_empty_main()
    if "numpy" in sys.modules:
        # Every rank would draw the same numbers. Python's own generator is seeded again by the fork, and torch's begins
        # with the same seed in every fresh process anyway.
        sys.modules["numpy"].random.seed()


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
        elif channel.broken is None and is_in_users_code(frame, become_rank.__code__):
            raise WorkerGroupError("this rank was told to end")
        elif channel.broken is None:
            _thread.start_new_thread(again, ())  # threading's own takes a lock, which this thread may hold

    def again() -> None:
        time.sleep(_AGAIN_S)
        os.kill(rank, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


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
