"""The warm server: a small program that has imported what ranks need, and forks them when it is asked.

It is a fresh interpreter and never a fork of the user's, which has threads and maybe a CUDA context; it runs no torch
operation and starts no thread, so that forking it is safe. It ends with its driver, however that ends, and takes all
ranks and their children with it: the kernel hands it their orphans, as it is their "subreaper".
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple, NoReturn

from turnout.controllers.process.rank import become_rank, die_with
from turnout.controllers.work import Launch
from turnout.first_imports import import_all

__all__ = ["Exited", "Fork", "Forked", "Signal", "main"]

_MADV_COLLAPSE = 25  # asm-generic/mman-common.h, since Linux 6.1
_HUGE = 2 << 20  # bytes of a huge page
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Fork(NamedTuple):
    """Asks for ranks. One descriptor for each rank's output follows, in order."""

    launch: Launch


class Signal(NamedTuple):
    """Asks that a rank be sent a signal, alone or with its process group; nothing happens if it has exited."""

    pid: int
    number: int
    whole_group: bool


class Forked(NamedTuple):
    """The ranks are there, in order."""

    pids: list[int]


class Exited(NamedTuple):
    """A rank has ended.

    Args:
        pid: its process.
        status: as `os.waitstatus_to_exitcode` gives it: below 0 the signal that killed it.
    """

    pid: int
    status: int


def main(handle: int, driver: int) -> NoReturn:
    """Serve until the driver is gone; its first message are the modules that must be imported, and those that may.

    Args:
        handle: of the socket to the driver.
        driver: its process.
    """
    _Server(handle, driver).run()


class _Server:
    def __init__(self, handle: int, driver: int) -> None:
        while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass  # a standard stream that the driver has closed: what is opened later must not take its place
        os.close(lowest)
        self._plain = socket.socket(fileno=handle)
        self._line = Connection(os.dup(handle))
        self._driver = driver
        self._ranks: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe()
        for each in (self._woken, self._waker):
            os.set_blocking(each, False)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            first, modules = pickle.loads(self._line.recv_bytes())
        except (EOFError, OSError):  # the driver was interrupted, or is gone
            os._exit(0)
        import_all(first)
        for module in modules:
            with contextlib.suppress(Exception):  # a rank that needs it says what is wrong with it
                importlib.import_module(module)
        gc.collect()
        gc.freeze()  # what is there now is never looked at again, so its pages stay shared with the ranks
        _gather_memory()

    def run(self) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interrupt means
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._selector.register(self._line, selectors.EVENT_READ, self._serve)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        with contextlib.suppress(OSError, AttributeError):  # where the system has it: a copy of the socket may be open
            self._selector.register(os.pidfd_open(self._driver), selectors.EVENT_READ, self._end)
        self._tell("ready")
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _tell(self, message: object) -> None:
        try:
            self._line.send_bytes(pickle.dumps(message))
        except OSError:
            self._end()

    def _serve(self) -> None:
        try:
            message = pickle.loads(self._line.recv_bytes())
        except (EOFError, OSError):
            self._end()
        if isinstance(message, Fork):
            self._fork(message.launch)
        elif isinstance(message, Signal) and message.pid in self._ranks:
            if message.whole_group:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(message.pid, message.number)
            with contextlib.suppress(ProcessLookupError):  # it may have left its group
                os.kill(message.pid, message.number)

    def _fork(self, launch: Launch) -> None:
        # A rank a message, as the kernel takes only so many descriptors at once.
        outputs = [socket.recv_fds(self._plain, 1, 1)[1][0] for _ in launch.ranks]
        pids = []
        for ranks, output in zip(launch.ranks, outputs, strict=True):
            pid = os.fork()
            if pid == 0:
                self._become(launch, ranks.rank, output, outputs)
            with contextlib.suppress(OSError):  # it does the same, and may have been first
                os.setpgid(pid, pid)
            self._ranks.add(pid)
            pids.append(pid)
        for output in outputs:
            os.close(output)
        self._tell(Forked(pids))

    def _become(self, launch: Launch, rank: int, output: int, outputs: Sequence[int]) -> NoReturn:
        try:
            parent = os.getppid()
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            self._selector.close()
            self._line.close()
            self._plain.close()
            for each in (self._woken, self._waker, *(other for other in outputs if other != output)):
                os.close(each)
            die_with(parent)
            become_rank(launch, rank, output)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for pid in self._dead():
            if pid in self._ranks:
                # While the rank is not yet reaped its number is nobody else's, nor is its group's.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                self._ranks.discard(pid)
                self._tell(Exited(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            else:
                os.waitpid(pid, 0)  # a child that a rank has left behind
        if not self._ranks:
            self._kill_strays()

    @staticmethod
    def _dead() -> Iterator[int]:
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            yield found.si_pid

    @staticmethod
    def _kill_strays() -> None:
        """No rank is left, so whoever is a child now was one of a rank's, in a process group of its own."""
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _end(self) -> NoReturn:
        deadline = time.monotonic() + 1.5
        for pid in self._ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        while _children() and time.monotonic() < deadline:
            self._kill_strays()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)
        os._exit(0)


def _gather_memory() -> None:
    """Put this process's memory into huge pages where the kernel can: a fork copies an entry for each page.

    With torch in it that is most of what a fork takes. Where it cannot be done nothing is lost.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="ascii") as file:
        for line in file.readlines():
            place, rights, _, _, _, *name = line.split(maxsplit=5)
            if rights != "rw-p" or (name and name[0].strip() != "[heap]"):
                continue
            start, stop = (int(end, 16) for end in place.split("-"))
            start, stop = -(-start // _HUGE) * _HUGE, stop // _HUGE * _HUGE
            if start < stop:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_COLLAPSE)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []
