"""The driver's side of the warm server: it is started once, lent to one attempt at a time, and ends with the driver."""

from __future__ import annotations

import atexit
import contextlib
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

from turnout.controllers.process.rank import Launch
from turnout.controllers.process.server import Exited, Fork, Forked, Signal
from turnout.errors import ControllerError

__all__ = ["Server", "lent_server"]

logger = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0]
_START_LIMIT_S = 120.0
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
        self._driver = os.getpid()
        mine, its = socket.socketpair()
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
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # an interrupt from the terminal is for the driver alone
            )
        try:
            self.line.send_bytes(pickle.dumps([*_own_modules(), *sorted(preload)]))
            ready = self.line.poll(_START_LIMIT_S) and pickle.loads(self.line.recv_bytes()) == "ready"
        except (EOFError, OSError):
            ready = False
        if not ready:
            self.close()
            raise ControllerError(
                f"the server that forks ranks ({sys.executable}) did not start; what it said is on the standard error"
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def fork(self, launch: Launch, outputs: Sequence[int]) -> list[int]:
        """Fork ranks; returns their processes, in order.

        Args:
            launch: what they begin with.
            outputs: a descriptor for each, for its standard output and error.
        """
        self.line.send_bytes(pickle.dumps(Fork(launch)))
        for output in outputs:
            socket.send_fds(self._plain, [b"!"], [output])
        answer = pickle.loads(self.line.recv_bytes())
        assert isinstance(answer, Forked), "the server is lent to one attempt, which has no ranks yet"
        return answer.pids

    def signal(self, pid: int, number: signal.Signals, *, whole_group: bool) -> None:
        """Send a rank a signal; nothing happens if it has exited."""
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

    def close(self) -> None:
        """End it, with every rank that it may still have."""
        self.line.close()
        self._plain.close()
        if os.getpid() != self._driver:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_LIMIT_S)
            return
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def lent_server(preload: Iterable[str]) -> Iterator[Server]:
    """A server for one attempt: an idle one that has imported ``preload``, else a new one.

    One that is still whole afterwards waits for the next; two trainers at once have one each.
    """
    needed = frozenset(preload)
    with _lock:
        server = next((each for each in _idle if needed <= each.preload), None)
        if server is not None:
            _idle.remove(server)
    if server is None:
        started = time.monotonic()
        server = Server(needed)
        logger.debug("a server that forks ranks took %.2f s to start", time.monotonic() - started)
    try:
        yield server
    except BaseException:
        server.close()
        raise
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


def _own_modules() -> list[str]:
    """What this process has loaded of Turnout, and what every rank imports on its way to the train function."""
    own = (name for name in sys.modules if name.startswith(f"{_PACKAGE}.") and ".testing" not in name)
    return ["hmac", "cloudpickle", *sorted(own)]


def _program(handle: int) -> str:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    return (
        f"import sys; sys.path.append({root!r})\n"
        f"from turnout.controllers.process.server import main\n"
        f"main({handle}, {os.getpid()})"
    )


atexit.register(close_idle_servers)
os.register_at_fork(after_in_child=_idle.clear)
