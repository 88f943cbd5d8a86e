"""The driver's side of the warm server: it is started once, lent to one attempt at a time, and ends with the driver."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection

from turnout.controllers.process.server import Exited, Fork, Forked, Signal
from turnout.controllers.work import Launch
from turnout.errors import ControllerError
from turnout.first_imports import first_imports

__all__ = ["Server", "lent_server"]

logger = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0]
_MARK = "TURNOUT_SERVER"
_START_LIMIT_S = 120.0
_FORK_LIMIT_S = 60.0
_END_LIMIT_S = 5.0

_idle: list[Server] = []
_lock = threading.Lock()


class Server:
    """A warm server, which has imported what this process has loaded of Turnout.

    Args:
        preload: further modules that it imports before it is ready.

    Raises:
        ControllerError: it could not be started.
    """

    def __init__(self, preload: frozenset[str]) -> None:
        self.preload = preload
        self.mark = f"{_MARK}={os.getpid()}-{os.urandom(8).hex()}"
        """Stands in the environment of every process that comes of it."""
        self._driver = os.getpid()
        self._is_closed = False
        mine, its = map(_above_the_streams, socket.socketpair())
        with its:
            self._plain = mine
            self.line = Connection(os.dup(mine.fileno()))
            """Carries what it tells: `Exited`."""
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _program(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # An OpenBLAS that begins with more has threads from then on, and a process with threads is not forked.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **self.variables},
                start_new_session=True,  # an interrupt from the terminal is for the driver alone
            )
        try:
            self.line.send_bytes(pickle.dumps((first_imports(), [*_own_modules(), *sorted(preload)])))
            ready = self.line.poll(_START_LIMIT_S) and pickle.loads(self.line.recv_bytes()) == "ready"
        except (EOFError, OSError):
            ready = False
        except BaseException:  # an interrupt, for example
            self.close()
            raise
        if not ready:
            self.close()
            raise ControllerError(
                f"the server that forks ranks ({sys.executable}) did not start; what it said is on the standard error"
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def variables(self) -> dict[str, str]:
        """The mark, as variables for the processes that come of it."""
        name, _, value = self.mark.partition("=")
        return {name: value}

    @property
    def is_usable(self) -> bool:
        """Whether it can be lent."""
        return not self._is_closed and self._process.poll() is None

    def fork(self, launch: Launch, outputs: Sequence[int]) -> list[int]:
        """Fork ranks; returns their processes, in order.

        Args:
            launch: what they begin with.
            outputs: a descriptor for each, for its standard output and error.

        Raises:
            ControllerError: the server is gone.
        """
        try:
            self.line.send_bytes(pickle.dumps(Fork(launch)))
            for output in outputs:
                socket.send_fds(self._plain, [b"!"], [output])
            if not self.line.poll(_FORK_LIMIT_S):
                raise TimeoutError(f"it has not answered within {_FORK_LIMIT_S:g} s; is it stopped?")
            answer = pickle.loads(self.line.recv_bytes())
        except (EOFError, OSError) as error:
            raise ControllerError(
                f"the server that forks ranks (pid {self.pid}) is gone: {error or 'it hung up'}"
            ) from error
        assert isinstance(answer, Forked), "the server is lent to one attempt, which has no ranks yet"
        return answer.pids

    def signal(self, pid: int, number: signal.Signals, *, whole_group: bool) -> None:
        """Send a rank a signal; nothing happens if it has exited."""
        if os.getpid() != self._driver:
            return  # a forked copy of the driver, whose ranks are not its own
        with contextlib.suppress(OSError):
            self.line.send_bytes(pickle.dumps(Signal(pid, number, whole_group)))

    def exited(self) -> Exited:
        """The next rank that has exited.

        Raises:
            EOFError: the server is gone, and all ranks with it.
        """
        message = pickle.loads(self.line.recv_bytes())
        assert isinstance(message, Exited), "the server tells of nothing else"
        return message

    def close(self) -> int:
        """End it, with every rank that it may still have; returns its exit status."""
        self._is_closed = True
        self.line.close()
        self._plain.close()
        if os.getpid() != self._driver:
            self._process.returncode = 0  # the driver's child, and not this copy's to wait for
            return 0
        try:
            status = self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if status != 0:  # it has not ended its ranks itself; they die with it, and what they have left ends here
            _kill_marked(self.mark)
        return status


@contextlib.contextmanager
def lent_server(preload: Iterable[str]) -> Iterator[Server]:
    """A server for one attempt: an idle one that has imported ``preload``, else a new one.

    One that is still whole afterwards waits for the next; two trainers at once have one each.
    """
    needed = frozenset(preload).union(first_imports())
    with _lock:
        dead = [each for each in _idle if not each.is_usable]
        _idle[:] = [each for each in _idle if each.is_usable]
        server = next((each for each in _idle if needed <= each.preload), None)
        if server is not None:
            _idle.remove(server)
    for each in dead:
        each.close()
    if server is None:
        started = time.monotonic()
        server = Server(needed)
        logger.debug("a server that forks ranks took %.2f s to start", time.monotonic() - started)
    try:
        yield server
    except BaseException:
        server.close()
        raise
    if not server.is_usable:
        server.close()
        return
    with _lock:
        outdone = [each for each in _idle if each.preload < server.preload]
        for each in outdone:
            _idle.remove(each)
        _idle.append(server)
    for each in outdone:
        each.close()


def close_idle_servers() -> None:
    """End the servers that wait for another run; the next run starts a new one."""
    with _lock:
        servers, _idle[:] = list(_idle), []
    for server in servers:
        server.close()


def _forget_idle_servers() -> None:
    """This process is a copy of the driver, whose servers are not its own."""
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    for server in _idle:
        server.close()
    _idle.clear()


def _kill_marked(mark: str) -> None:
    """Kill every process that has ``mark`` in its environment, and those that they start meanwhile."""
    deadline = time.monotonic() + _END_LIMIT_S
    while (found := list(_marked(mark.encode()))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked(mark: bytes) -> Iterator[int]:
    for name in os.listdir("/proc") if sys.platform == "linux" else []:
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/environ", "rb") as file:  # empty once it has died
                    if mark in file.read().split(b"\0"):
                        yield int(name)


def _own_modules() -> list[str]:
    """What this process has loaded of Turnout, and what every rank imports on its way to the train function."""
    own = (name for name in sys.modules if name.startswith(f"{_PACKAGE}.") and ".testing" not in name)
    return ["hmac", "cloudpickle", *sorted(own)]


def _above_the_streams(plain: socket.socket) -> socket.socket:
    """The socket with a descriptor that is no standard stream's, should this process have closed one of these."""
    with plain:
        return socket.socket(fileno=fcntl.fcntl(plain, fcntl.F_DUPFD_CLOEXEC, 3))


def _program(handle: int) -> str:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    # The package of this very driver, also if another copy of it is installed.
    return (
        f"import sys; sys.path.insert(0, {root!r}); import {_PACKAGE}; sys.path.append(sys.path.pop(0))\n"
        f"from turnout.controllers.process.server import main\n"
        f"main({handle}, {os.getpid()})"
    )


atexit.register(close_idle_servers)
os.register_at_fork(after_in_child=_forget_idle_servers)
