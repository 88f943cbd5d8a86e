"""`Lease`: one driver at a time for a run, held by a file that is renewed and runs out.

A holder on this host is judged by the system: its process lives or is gone, and time is read from the monotonic clock,
which all processes of a boot share. So a clock that jumps never hands a run to two drivers on one host. A holder on
another host is judged by whether it renews: one that was not renewed for `duration_s`, watched by our own clock, has
run out. On a local filesystem the file is made and replaced under a lock on the run's folder. On an object store there
is no such lock: two drivers that come within the same round trip may both believe for up to one renewal that they hold
it, and the attempt numbers of ``run.json`` then fence the older.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from turnout.errors import StorageError, UsageError
from turnout.failpoints import failpoint
from turnout.process_identity import ProcessIdentity
from turnout.storage.run_folder import RunFolder

__all__ = ["DURATION_S", "Holder", "Lease"]

logger = logging.getLogger(__name__)

DURATION_S = 30.0
"""Seconds that a lease holds after it was last renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What ``lease.json`` says: who drives the run.

    Args:
        host: see `turnout.process_identity`.
        pid: the driver's process.
        started: when that process started, in ticks since boot.
        since: when it took the lease, in seconds since the epoch.
        token: random; tells one lease from another.
        duration_s: how long it holds after a renewal.
        renewed: when it was last renewed, in seconds since the epoch.
        renewed_monotonic: the same by the host's monotonic clock.
    """

    host: str
    pid: int
    started: int
    since: float
    token: str
    duration_s: float
    renewed: float
    renewed_monotonic: float

    @property
    def process(self) -> ProcessIdentity:
        """The driver's process."""
        return ProcessIdentity(self.host, self.pid, self.started)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"host {self.host.partition(' ')[0]}, pid {self.pid}, since {since}"


class Lease:
    """The right to drive a run. Nothing is held before `acquire` has returned.

    Args:
        run: the run.
        duration_s: how long it holds after a renewal.

    Example:
        >>> import tempfile
        >>> from turnout.storage.location import StorageLocation
        >>> lease = Lease(RunFolder(StorageLocation.open(tempfile.mkdtemp()), "run"))
        >>> lease.acquire()
        >>> with lease.kept(on_lost=print):
        ...     pass
        >>> lease.release()
    """

    def __init__(self, run: RunFolder, *, duration_s: float = DURATION_S) -> None:
        self.run = run
        self.duration_s = duration_s
        self._place = run.location / "lease.json"
        self._token = ""
        self._since = 0.0
        self._renewed = 0.0
        self._waits_for_lock = True

    def acquire(self, *, wait: bool = True, on_wait: Callable[[str], None] | None = None) -> None:
        """Take the lease.

        Args:
            wait: whether to wait for a lease that may run out, at most for its duration.
            on_wait: told once what is waited for; by default it is logged.

        Raises:
            UsageError: another driver holds it; the text says who, where and since when.
            StorageError: the storage does not serve.
        """
        self.run.location.make_folder()
        self._token = uuid.uuid4().hex
        self._since = time.time()
        watched: tuple[str, float] | None = None
        until = 0.0
        while True:
            with self._locked():
                holder = self.holder()
                if holder is None and self._take(None):
                    return
                remaining = 0.0 if holder is None else self._remaining(holder)
                if holder is not None and remaining <= 0 and self._take(holder):
                    return
            if holder is None or remaining <= 0:
                continue  # another was quicker, and is asked about now
            seen = (holder.token, holder.renewed)
            if remaining == _ALIVE or not wait or (watched is not None and watched != seen):
                raise UsageError(
                    f"run {self.run.name!r} ({self.run.location}) is driven by another process: {holder}. "
                    "Wait for it to end, stop it, or give this run another name"
                )
            if watched is None:
                watched, until = seen, time.monotonic() + remaining
                message = (
                    f"run {self.run.name!r}: waiting up to {remaining:.0f} s for the lease of {holder} to run out: "
                    "whether it still lives cannot be told from here"
                )
                (on_wait or logger.warning)(message)
            if time.monotonic() >= until:
                with self._locked():
                    current = self.holder()
                    unchanged = current is None or (current.token, current.renewed) == watched
                    if unchanged and self._take(current):
                        return
                continue
            time.sleep(min(1.0, max(0.01, until - time.monotonic()), self.duration_s / 10))

    def renew(self) -> None:
        """Hold it for `duration_s` more.

        Raises:
            StorageError: it is another's by now, or the storage does not serve.
        """
        begin = time.monotonic()
        with self._locked():
            holder = self.holder()
            ran_out = time.monotonic() - self._renewed > self.duration_s
            if holder is None:
                is_lost = ran_out  # another has taken it and given it back meanwhile
            elif holder.token == self._token:
                is_lost = False
            else:
                # An older one that has run out was put back by a driver that was stopped while it renewed.
                is_lost = ran_out or holder.since >= self._since or self._remaining(holder) > 0
            failpoint("lease.before_renewal")
            if not is_lost:
                self._write(begin)
        if is_lost or time.monotonic() - begin > self.duration_s:
            self._token = ""
            by = "may be driven by another by now" if not is_lost or holder is None else f"is now driven by {holder}"
            raise StorageError(
                f"run {self.run.name!r}: the lease was lost: it had not been renewed for "
                f"{self.duration_s:.0f} s, and the run {by}"
            )

    def release(self) -> None:
        """Give it back, if it is still held."""
        if self._token:
            with self._locked():
                holder = self.holder()
                if holder is not None and holder.token == self._token:
                    self._place.delete()
            self._token = ""

    @contextlib.contextmanager
    def kept(
        self, *, on_lost: Callable[[StorageError], None], meanwhile: Callable[[], None] | None = None
    ) -> Iterator[Lease]:
        """Renew it on a thread for the length of the block.

        Args:
            on_lost: called on that thread, once, when another has the lease or it could not be renewed in time.
            meanwhile: called on that thread about once a second, for small housekeeping.
        """
        stop = threading.Event()
        thread = threading.Thread(target=self._keep, args=(stop, on_lost, meanwhile), name="turnout-lease", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def holder(self) -> Holder | None:
        """Who holds it; None if nobody does, or if the file is damaged, which is nobody's."""
        data = self._place.read()
        if data is None:
            return None
        try:
            return Holder(**json.loads(data))
        except (ValueError, TypeError):
            logger.warning("%s is cut short or damaged, and is replaced", self._place)
            return None

    # -- within

    def _remaining(self, holder: Holder) -> float:
        """Seconds until the lease has run out, 0 if it has, `_ALIVE` if its driver is known to be at work."""
        process = holder.process
        if process.is_on_this_host:
            if not process.is_alive:
                return 0.0
            left = holder.renewed_monotonic + holder.duration_s - time.monotonic()
            if left <= 0:
                return 0.0
            return left if process.is_stopped else _ALIVE
        # Two hosts' clocks may differ: only one that is long past is believed, else it is watched for its duration.
        past = time.time() - holder.renewed
        return 0.0 if past > 2 * holder.duration_s else holder.duration_s

    def _take(self, replacing: Holder | None) -> bool:
        if replacing is None and not self._place.exists():
            if not self._place.create_exclusive(self._bytes(time.monotonic())):
                return False
        else:
            if replacing is not None:
                logger.warning("run %r: taking over from a driver that is gone: %s", self.run.name, replacing)
            self._write(time.monotonic())
        # Where no lock could be had, the last of several writers has it.
        holder = self.holder()
        self._renewed = time.monotonic()
        return holder is not None and holder.token == self._token

    def _write(self, begin: float) -> None:
        """Renew it as of ``begin``: whoever is stopped from then on renews nothing when it goes on."""
        self._place.put(self._bytes(begin))
        self._renewed = begin

    def _bytes(self, begin: float) -> bytes:
        process = ProcessIdentity.current()
        holder = Holder(
            host=process.host,
            pid=process.pid,
            started=process.started,
            since=self._since,
            token=self._token,
            duration_s=self.duration_s,
            renewed=time.time() - (time.monotonic() - begin),
            renewed_monotonic=begin,
        )
        return (json.dumps(asdict(holder)) + "\n").encode()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others on this filesystem from the file, unless it is one that has no locks, as some network disks."""
        if not self.run.location.is_local:
            yield
            return
        handle = self.run.location._do("lock", lambda: os.open(self.run.location.path, os.O_RDONLY | os.O_DIRECTORY))
        try:
            self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        """Wait for the lock, but no longer than for a lease: a driver may have been stopped while it held it."""
        until = time.monotonic() + (self.duration_s if self._waits_for_lock else 0.0)
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.005)
                    continue
                if self._waits_for_lock:
                    self._waits_for_lock = False
                    logger.warning(
                        "run %r: a process holds the lock on %s and does not go on; it is done without from here on",
                        self.run.name,
                        self.run.location,
                    )
                return
            except OSError:
                return

    def _keep(
        self, stop: threading.Event, on_lost: Callable[[StorageError], None], meanwhile: Callable[[], None] | None
    ) -> None:
        period = self.duration_s / 3
        while not stop.wait(min(1.0, period / 2)):
            if meanwhile is not None:
                try:
                    meanwhile()
                except Exception:
                    logger.exception("run %r: housekeeping beside the lease failed", self.run.name)
            if time.monotonic() - self._renewed < period:
                continue
            try:
                self.renew()
            except StorageError as error:
                if self._token and time.monotonic() - self._renewed < self.duration_s:
                    logger.warning("run %r: the lease could not be renewed, trying again: %s", self.run.name, error)
                    continue
                on_lost(error)
                return


_ALIVE = float("inf")
