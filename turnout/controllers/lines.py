"""Framed messages over a socket, between two ends that have shown each other that they know an attempt's key.

A rank's end (`Line`) blocks; the coordinator's end (`ServedLine`) never does, so that a rank which is stopped in the
middle of a message, or a stranger who connects and says nothing, holds up nobody else.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import struct
import sys
import tempfile
from collections import deque
from typing import NamedTuple

__all__ = ["Address", "Line", "ServedLine", "connected", "framed", "listening"]

_HEADER = struct.Struct(">Q")
_PIECE = 1 << 16
_LARGE = 1 << 20
_NONCE = 32
_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)
_GREETING_LIMIT = 1024
"""Bytes that a stranger may send; a rank's greeting is shorter."""


class Address(NamedTuple):
    """Where a coordinator listens, and the key that opens it."""

    place: str | tuple[str, int]
    key: bytes


class Line:
    """A rank's end.

    Args:
        plain: a connected socket; it is closed with the line.
    """

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Send a message; returns once the kernel has it.

        Raises:
            OSError: the other end is gone.
        """
        for part in framed(data):
            self._plain.sendall(part)

    def send_raw(self, data: bytes) -> None:
        """Send what is no message, to an end that expects none; returns once the kernel has it.

        Raises:
            OSError: the other end is gone.
        """
        self._plain.sendall(data)

    def receive(self) -> bytes:
        """The next message.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        data = self._rest or self._more()
        while len(data) < _HEADER.size:
            data += self._more()
        end = _HEADER.size + _size_of(data)
        if len(data) < end:
            data = self._whole(data, end)
        self._rest = data[end:]
        return data[_HEADER.size : end]

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._plain.fileno()

    def close(self) -> None:
        """Hang up."""
        self._plain.close()

    def _more(self) -> bytes:
        data = self._plain.recv(_PIECE)
        if not data:
            raise EOFError("the other end has hung up")
        return data

    def _whole(self, start: bytes, size: int) -> bytes:
        whole = bytearray(size)
        whole[: len(start)] = start
        filled = len(start)
        with memoryview(whole) as view:
            while filled < size:
                count = self._plain.recv_into(view[filled:])
                if count == 0:
                    raise EOFError("the other end has hung up")
                filled += count
        return bytes(whole)


class ServedLine:
    """The coordinator's end, for a loop that watches its descriptor; it is closed to all but ranks of the attempt.

    Args:
        plain: the accepted socket; it is closed with the line.
        key: what a rank must know.
    """

    def __init__(self, plain: socket.socket, key: bytes) -> None:
        plain.setblocking(False)
        self._plain = plain
        self._incoming = bytearray()
        self._outgoing: deque[memoryview] = deque()
        self._key = key
        self._nonce = os.urandom(_NONCE)
        self._is_open = False
        self.send(framed(self._nonce))

    def greeted(self) -> bytes | None:
        """Read what the other end says of itself, once; None if it has not all come yet.

        Raises:
            PermissionError: it does not know the key.
            EOFError, OSError: it is gone.
        """
        if len(self._incoming) < _GREETING_LIMIT:
            self._receive()
        greeting = self._next()
        if greeting is None:
            if len(self._incoming) >= _GREETING_LIMIT:
                raise PermissionError("its greeting is none")
            return None
        proof, nonce, hello = greeting[:32], greeting[32 : 32 + _NONCE], greeting[32 + _NONCE :]
        if not hmac.compare_digest(proof, _proof(self._key, b"rank", self._nonce, nonce, hello)):
            raise PermissionError("it does not know the key")
        self._is_open = True
        self.send(framed(_proof(self._key, b"coordinator", nonce, self._nonce)))
        return hello

    def messages(self) -> list[bytes]:
        """What has come whole, without waiting.

        Raises:
            EOFError, OSError: the other end is gone; what came whole before was given by the calls before.
        """
        if not self._incoming:  # by far the most: one small message, whole
            try:
                data = self._plain.recv(_PIECE)
            except BlockingIOError:
                return []
            if len(data) == _HEADER.size + _size_of(data):
                return [data[_HEADER.size :]]
            self._take(data)
        else:
            with contextlib.suppress(BlockingIOError):
                self._receive()
        return list(iter(self._next, None))

    def rest(self) -> list[bytes]:
        """All that has come whole, also of an end that has hung up meanwhile."""
        with contextlib.suppress(BlockingIOError, EOFError, OSError):
            while True:
                self._receive()
        return list(iter(self._next, None))

    def raw(self) -> bytes:
        """What has come of an end that sends no messages, as far as one look goes; empty if there is nothing.

        Raises:
            EOFError, OSError: the other end is gone, and all that it has sent was given.
        """
        if not self._incoming:
            with contextlib.suppress(BlockingIOError):
                self._receive()
        data = bytes(self._incoming)
        self._incoming.clear()
        return data

    def is_hung_up(self) -> bool:
        """Whether the other end has hung up, though something that it has sent may still be unread."""
        poll = select.poll()
        poll.register(self._plain, _HUNG_UP)
        return bool(poll.poll(0))

    def send(self, frame: tuple[bytes, ...]) -> bool:
        """Send a message, as `framed` gives it, as far as that goes at once; returns whether all of it has gone.

        Raises:
            OSError: the other end is gone.
        """
        if not self._outgoing and len(frame) == 1:
            with contextlib.suppress(BlockingIOError):
                sent = self._plain.send(frame[0])
                if sent == len(frame[0]):
                    return True
                frame = (frame[0][sent:],)
        self._outgoing.extend(map(memoryview, frame))
        return self.send_rest()

    @property
    def has_rest(self) -> bool:
        """Whether something waits until the other end reads."""
        return bool(self._outgoing)

    def send_rest(self) -> bool:
        """Send what waits, as far as that goes at once; returns whether nothing waits any more."""
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                sent = self._plain.send(self._outgoing[0])
                if sent == len(self._outgoing[0]):
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = self._outgoing[0][sent:]
        return not self._outgoing

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._plain.fileno()

    def close(self) -> None:
        """Hang up."""
        self._plain.close()

    def _receive(self) -> None:
        self._take(self._plain.recv(_LARGE if len(self._incoming) >= _PIECE else _PIECE))

    def _take(self, data: bytes) -> None:
        if not data:
            raise EOFError("the other end has hung up")
        self._incoming += data

    def _next(self) -> bytes | None:
        if len(self._incoming) < _HEADER.size:
            return None
        end = _HEADER.size + _size_of(self._incoming)
        if len(self._incoming) < end or (end > _GREETING_LIMIT and not self._is_open):
            return None
        with memoryview(self._incoming) as view:
            message = bytes(view[_HEADER.size : end])
        del self._incoming[:end]
        return message


def framed(data: bytes) -> tuple[bytes, ...]:
    """A message as it goes over the socket, in one part or, to spare the copy of a large one, two."""
    header = _HEADER.pack(len(data))
    return (header + data,) if len(data) < _PIECE else (header, data)


def listening(address: str | None, cleanup: contextlib.ExitStack) -> tuple[socket.socket, str | tuple[str, int]]:
    """A listening socket, and where it is: a path, or host and port."""
    if address is None and sys.platform == "linux":  # a name that is no file's, so that a killed driver leaves none
        listener, place = socket.socket(socket.AF_UNIX), f"\0turnout-{os.getpid()}-{os.urandom(8).hex()}"
    elif address is None:
        folder = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="turnout-", dir="/tmp"))
        listener, place = socket.socket(socket.AF_UNIX), f"{folder}/ranks"
    else:
        listener, place = socket.socket(socket.AF_INET), (address, 0)  # type: ignore[assignment]
    cleanup.callback(listener.close)
    listener.bind(place)
    listener.listen(1024)
    return listener, place if address is None else listener.getsockname()


def connected(address: Address, hello: bytes) -> Line:
    """A line to the coordinator, which has said who this is.

    Raises:
        PermissionError: whoever listens there does not know the key.
        OSError, EOFError: nobody listens there, or the key is wrong.
    """
    plain = socket.socket(socket.AF_UNIX if isinstance(address.place, str) else socket.AF_INET)
    try:
        plain.connect(address.place)
        if plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line = Line(plain)
        its, mine = line.receive(), os.urandom(_NONCE)
        line.send(_proof(address.key, b"rank", its, mine, hello) + mine + hello)
        if not hmac.compare_digest(line.receive(), _proof(address.key, b"coordinator", mine, its)):
            raise PermissionError(f"whoever listens at {address.place} is not the coordinator of this run")
    except BaseException:
        plain.close()
        raise
    return line


def _size_of(data: bytes | bytearray) -> int:
    """What the header at the start of ``data`` says; 0 if it has not come whole."""
    size: int = _HEADER.unpack_from(data)[0] if len(data) >= _HEADER.size else 0
    return size


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")
