"""Where a framework's own server is reached that binds its port by itself: this rank's address and a port for it."""

from __future__ import annotations

import os
import socket

from turnout.session.events import RankInfo

__all__ = ["LOOPBACK", "HeldPort", "own_address"]

LOOPBACK = "127.0.0.1"
_OUTSIDE = "10.255.255.255"


class HeldPort:
    """A free port that stays nobody else's until it is released: bound, and not listened on.

    gRPC, by which both TensorFlow and JAX serve, binds a port with SO_REUSEPORT, which lets it stand beside another
    socket of the same user that has asked for the same. A socket that does not listen gets no connection. The kernel
    gives a port that is bound to nobody who asks for any, so two trainers that start at once never meet.

    Args:
        host: the address that the server will bind, such as `LOOPBACK`; None for all addresses of this machine.
    """

    def __init__(self, host: str | None = None) -> None:
        self._socket = _bound(host)
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let it go; can be done twice."""
        self._socket.close()


def own_address(ranks: RankInfo) -> str:
    """Where the other ranks reach this one.

    Args:
        ranks: who this rank is.
    """
    if ranks.local_world_size == ranks.world_size:
        return LOOPBACK
    leader = os.environ.get("MASTER_ADDR")  # a controller over several nodes says by which address rank 0 is reached
    if leader and ranks.rank == 0:
        return leader
    family, kind, _, _, place = socket.getaddrinfo(leader or _OUTSIDE, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        try:
            probe.connect(place)  # sends nothing: it only chooses the interface that leads there
            address: str = probe.getsockname()[0]
        except OSError:
            address = socket.gethostbyname(socket.gethostname())
    return f"[{address}]" if ":" in address else address


def _bound(host: str | None) -> socket.socket:
    family = socket.AF_INET6 if host is None and socket.has_dualstack_ipv6() else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((host or "", 0))
    except OSError:
        held.close()
        raise
    return held
