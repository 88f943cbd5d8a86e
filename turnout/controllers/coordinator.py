"""`Coordinator`: where the ranks of one attempt meet, and where their events arrive, on every track of several ranks.

Each rank holds a connection to it (`turnout.controllers.wire`). It knows who has arrived at a meeting and who has
ended, so whoever waits for a rank that can never come is told at once. One loop, on the thread that calls `serve`, does
everything: meetings, events, and whatever else its controller has it watch.

A lane is a line of meetings of its own: the train function meets on ``"main"``, background uploads on another.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from turnout.combined_error import text_of
from turnout.config import PreemptionInfo
from turnout.controllers.asking import ask_for_stacks
from turnout.controllers.base import Sink
from turnout.controllers.lines import Address, ServedLine, framed, listening
from turnout.controllers.loop import Loop
from turnout.controllers.output import PIECE
from turnout.controllers.stacks import Place, merged, where_of
from turnout.controllers.travel import dumps, loads
from turnout.controllers.wire import (
    CONTROL,
    DRIVERS,
    MAIN,
    OUTPUT,
    Break,
    Hello,
    Meet,
    Noticed,
    error_of,
    understood,
    value_of,
)
from turnout.errors import WorkerGroupError
from turnout.process_identity import is_exiting
from turnout.session.events import Died, Failed, Finished, Reported, Started

__all__ = ["Coordinator"]

logger = logging.getLogger(__name__)

_GREETING_S = 5.0  # a stranger who connects and says nothing has a descriptor no longer
_MOST_PIECES = 256  # of a rank's output, of which a connection holds no more; a child may go on to write
_DEATH_S = 3.0  # from a rank's hanging up until its death is known
_OUTPUT_S = 0.005  # between two looks at what a rank prints


@dataclass(slots=True)
class _Member:
    """What is known of one rank."""

    rank: int
    lines: dict[str, ServedLine] = field(default_factory=dict)
    control: ServedLine | None = None
    output: ServedLine | None = None
    pid: int | None = None
    """Its process, where that is on this machine."""
    num_reports: int = 0
    last_seen: Meet | None = None
    """Its last meeting that a line of the user's has called."""
    has_finished: bool = False
    has_left: bool = False
    """It has hung up."""
    has_ended: bool = False
    """It has said its last word, or is known to be gone."""


@dataclass(slots=True)
class _Lane:
    """One line of meetings."""

    name: str
    waiting: dict[int, Meet] = field(default_factory=dict)
    lines: dict[int, ServedLine] = field(default_factory=dict)
    since: float = 0.0
    warn_after_s: float = 0.0


class Coordinator(Loop):
    """Carries meetings and events for the ranks of one attempt.

    Args:
        world_size: how many ranks come.
        sink: takes their events, on the thread that serves.
        address: where to listen: None for a socket of this machine's alone, else a host.
        stall_timeout_s: seconds that ranks wait on each other before it is told where all of them are.
        fails_on_stall: break the attempt then.
        linger_s: how long the loop goes on looking before it sleeps; see `Loop`. Not done with more ranks than this
            machine has cores, since they may be here and lack the core that looks on.
        on_break: called once, when the attempt cannot go on, with the reason.
        on_disconnect: called with a rank whose connection has closed without a last word.
        on_output: called with a rank and what it has printed, where that comes by its connection.
    """

    def __init__(
        self,
        world_size: int,
        sink: Sink,
        *,
        address: str | None = None,
        stall_timeout_s: float = 300.0,
        fails_on_stall: bool = False,
        linger_s: float = 0.0,
        on_break: Callable[[str], None] = lambda reason: None,
        on_disconnect: Callable[[int], None] = lambda rank: None,
        on_output: Callable[[int, bytes], None] = lambda rank, data: None,
    ) -> None:
        super().__init__(linger_s if world_size <= (os.cpu_count() or 1) else 0.0)
        self.world_size = world_size
        self.broken: Break | None = None
        """Why the attempt cannot go on, if it cannot."""
        self.told: set[int] = set()
        """The ranks that were waiting when it broke, and so know."""
        self.sink = sink
        self._stall_timeout_s = stall_timeout_s
        self._fails_on_stall = fails_on_stall
        self._on_break = on_break
        self._on_disconnect = on_disconnect
        self._on_output = on_output
        self._members = {rank: _Member(rank) for rank in range(world_size)}
        self._lanes: dict[str, _Lane] = {}
        self._stop: Break | None = None
        self._has_stopped = False
        self._notice: PreemptionInfo | None = None
        """Goes with the answers of the train function's next meeting."""
        self._drivers_broken: Break | None = None
        self._held: list[Callable[[], None]] = []
        """Failures that wait for the death of a rank that has hung up, since that comes first."""
        self._looks_for_stalls = False
        self._askers: list[Callable[[dict[int, Place]], None]] = []
        """Wait to be told where all ranks are."""
        self._strangers: set[ServedLine] = set()
        """Have connected, and not yet said who they are."""
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(self._cleanup)
            self._listener, place = listening(address, cleanup)
            self.address = Address(place, os.urandom(32))
            """What a rank needs to connect."""
            cleanup.callback(self._close_lines)
            self.watch(self._listener, self._accept)
            self._cleanup = cleanup.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every line and the listening socket."""
        self._cleanup.close()

    # -- what the controller knows and tells

    @property
    def connected(self) -> set[int]:
        """The ranks that have come, and not left."""
        return {rank for rank, member in self._members.items() if member.lines or member.output}

    @property
    def come(self) -> set[int]:
        """The ranks that have come, also those that have left again."""
        return {rank for rank, member in self._members.items() if MAIN in member.lines or member.has_left}

    @property
    def waiting(self) -> set[int]:
        """The ranks that are in a meeting of the train function."""
        return set(self._lane(MAIN).waiting)

    @property
    def unfinished(self) -> set[int]:
        """The ranks that have not said their last word."""
        return {rank for rank, member in self._members.items() if not member.has_ended}

    def died(self, rank: int, reason: str, output: str = "") -> None:
        """A rank is gone; unless it had said its last word, the attempt breaks.

        Args:
            rank: the rank.
            reason: how it ended.
            output: its last lines.
        """
        member = self._members[rank]
        if member.has_ended:
            return
        member.has_ended = True
        seen = f"; last seen in {member.last_seen}" if member.last_seen else ""
        text = f"{reason}{seen}; reports made: {member.num_reports}"
        self.sink(Died(rank, f"{text}\nits last lines of output:\n{output}" if output else text))
        self.break_off(f"rank {rank} {text}")
        self._release_held()

    def read_rest(self, rank: int, but: str = "") -> None:
        """Take what a rank has sent before, which nobody has read yet, on all lanes ``but`` one."""
        member = self._members[rank]
        for _ in range(_MOST_PIECES):
            if member.output is None or not self._read_output(member, member.output):
                break
        for name, line in [each for each in member.lines.items() if each[0] != but]:
            for data in line.rest():
                self._understand(member, self._lane(name), data)

    def last_words(self, rank: int) -> str:
        """What a rank that has crashed has written of it, as `WireChannel.tell_of_crashes` has it do."""
        control, words = self._members[rank].control, b""
        with contextlib.suppress(EOFError, OSError):
            while control is not None and (data := control.raw()):
                words += data
        return words.decode(errors="replace")

    def stop(self, reason: str = "the run was interrupted") -> None:
        """End at the next report, on all ranks alike, as if the user had interrupted each there.

        Background uploads go on to meet: they are drained first.
        """
        self._stop = Break("interrupted", reason)
        lane = self._lane(MAIN)
        for rank, meet in list(lane.waiting.items()):
            if meet.tag == "report":
                self._answer(lane, rank, self._stop)

    @property
    def has_stopped(self) -> bool:
        """Whether ranks have been told so at a report."""
        return self._has_stopped

    def notify(self, notice: PreemptionInfo) -> None:
        """Have the ranks know from their next meeting on that machines go, so that all know it at the same call."""
        self._notice = notice

    def break_off(self, reason: str, kind: str = "failed") -> None:
        """End every wait of the attempt, and refuse those to come; the first reason stays."""
        if self.broken is not None:
            return
        self.broken = Break(kind, reason)
        for lane in self._lanes.values():
            if lane.name != DRIVERS:
                self._end_waits(lane, self.broken)
        self._on_break(reason)

    def abort(self, reason: str) -> None:
        """Break the attempt because the driver ends it."""
        self.break_off(f"the run was aborted: {reason}", "aborted")

    def break_drivers(self, reason: str) -> None:
        """Let the driver programs of the ranks wait for each other no more."""
        if self._drivers_broken is None:
            self._drivers_broken = Break("failed", reason)
            self._end_waits(self._lane(DRIVERS), self._drivers_broken)

    def _end_waits(self, lane: _Lane, why: Break) -> None:
        for rank in list(lane.waiting):
            self._answer(lane, rank, why)

    def show_stacks(self) -> None:
        """Log where all ranks are, because a user has asked by SIGUSR1; from any thread, or a signal handler."""
        self.call_soon(lambda: self.tell_stacks(lambda text: logger.warning("SIGUSR1: %s", text)))

    def tell_stacks(self, then: Callable[[str], None]) -> None:
        """Ask every rank where it is; ``then`` is called in the loop with all of it, merged."""
        self._ask_where(lambda places: then(merged(places)))

    def _ask_where(self, then: Callable[[dict[int, Place]], None]) -> None:
        self._askers.append(then)
        if len(self._askers) > 1:
            return  # the answers to the one before are for this one too
        asked = {each.rank: each.control for each in self._members.values() if each.control and not each.has_ended}

        def tell(dumps: dict[int, str]) -> None:
            askers, self._askers = self._askers, []
            places = self._places(dumps)
            for each in askers:
                each(places)

        ask_for_stacks(self, asked, tell)

    def _places(self, stacks: dict[int, str]) -> dict[int, Place]:
        waiting = self._lane(MAIN).waiting
        places = {}
        for rank, member in self._members.items():
            if rank in waiting:
                places[rank] = Place(f"waits in {waiting[rank]}", waiting[rank].place)
            elif member.has_ended:
                places[rank] = Place("has ended")
            else:
                places[rank] = where_of(stacks.get(rank, ""))
        return places

    # -- connections

    def _accept(self) -> None:
        try:
            plain, _ = self._listener.accept()
        except OSError:  # whoever it was has gone again, or there is no descriptor left for it
            return
        try:
            if plain.family != socket.AF_UNIX:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = ServedLine(plain, self.address.key)
        except OSError:
            plain.close()
            return
        strangers = self._strangers
        strangers.add(line)
        self.watch(line, lambda: self._greet(line))
        self.call_in(_GREETING_S, lambda: self._refuse(line, "it has said nothing") if line in strangers else None)

    def _greet(self, line: ServedLine) -> None:
        try:
            greeting = line.greeted()
        except (EOFError, OSError) as error:
            self._refuse(line, str(error) if isinstance(error, PermissionError) else "")
            return
        if greeting is None:
            return
        self._strangers.discard(line)
        hello = Hello._make(loads(greeting))
        member, lane = self._members[hello.rank], self._lane(hello.lane)
        if hello.lane == CONTROL:
            self.unwatch(line)
            member.control = line
            return
        if hello.lane == OUTPUT:
            member.output = line
            self._watch_output(member, line)
            return
        member.lines[hello.lane] = lane.lines[hello.rank] = line
        self.watch(line, lambda: self._read(member, lane, line))

    def _refuse(self, line: ServedLine, why: str) -> None:
        if why:  # else it has hung up, as a rank does that is ended while it connects
            logger.warning("a connection that is none of this run's ranks was refused: %s", why)
        self._strangers.discard(line)
        self.unwatch(line)
        line.close()

    def _read(self, member: _Member, lane: _Lane, line: ServedLine) -> None:
        try:
            if line.has_rest and line.send_rest():
                self.watch(line, lambda: self._read(member, lane, line))
            messages = line.messages()
        except (EOFError, OSError):
            self._hang_up(member, lane, line)
            return
        for data in messages:
            self._understand(member, lane, data)

    def _understand(self, member: _Member, lane: _Lane, data: bytes) -> None:
        message = understood(data)
        if type(message) is Meet:
            self._arrive(member, lane, message)
        else:
            self._take(member, message)

    def _watch_output(self, member: _Member, line: ServedLine) -> None:
        """Pass on what a rank prints: the first line at once, and those that follow it together.

        Else each would cost the reports of all ranks what it takes to look, to show it and to write it to the log.
        """

        def read() -> None:
            if 0 < self._read_output(member, line) < PIECE:
                self.unwatch(line)
                self.call_in(_OUTPUT_S, watch)

        def watch() -> None:
            if member.output is line:
                self.watch(line, read)

        watch()

    def _read_output(self, member: _Member, line: ServedLine) -> int:
        """Pass on what a rank has printed, as far as one look goes; returns how many bytes."""
        try:
            data = line.raw()
        except (EOFError, OSError):
            self.unwatch(line)
            line.close()
            member.output = None
            return 0
        if data:
            self._on_output(member.rank, data)
        return len(data)

    def _send(self, lane: _Lane, rank: int, frame: tuple[bytes, ...]) -> None:
        line = lane.lines[rank]
        try:
            has_gone = line.send(frame)
        except OSError:  # a rank that is gone is noticed where its line is read
            return
        if not has_gone:
            member = self._members[rank]
            self.watch(line, lambda: self._read(member, lane, line), writes=True)

    def _hang_up(self, member: _Member, lane: _Lane, line: ServedLine) -> None:
        self.unwatch(line)
        line.close()
        lane.waiting.pop(member.rank, None)
        member.lines.pop(lane.name, None)
        member.has_left = member.has_left or lane.name == MAIN
        if lane.name == MAIN and not member.has_ended:
            self._on_disconnect(member.rank)
        elif lane.name == DRIVERS:
            self.break_drivers(f"rank {member.rank} has left the run")

    def hang_up(self) -> None:
        """Close every rank's line."""
        for member in self._members.values():
            for name, line in list(member.lines.items()):
                member.has_ended = True
                self._hang_up(member, self._lane(name), line)

    def _close_lines(self) -> None:
        for member in self._members.values():
            for line in (*member.lines.values(), *filter(None, [member.control, member.output])):
                line.close()
        for line in self._strangers:
            line.close()

    def _answer(self, lane: _Lane, rank: int, why: Break) -> None:
        self._has_stopped = self._has_stopped or why is self._stop
        lane.waiting.pop(rank, None)
        self.told |= {rank} if lane.name == MAIN else set()
        self._send(lane, rank, framed(dumps(why)))

    # -- messages

    def _take(self, member: _Member, event: Any) -> None:  # Any: an event, or one that is still packed
        if type(event) is Reported:
            member.num_reports += 1
            self.sink(event)
        elif type(event) is Failed:
            member.has_ended = True
            fail = functools.partial(self._break_for, event._replace(error=error_of(event)))
            if self._hung_up_before(member):
                self._held.append(fail)
                self.call_in(_DEATH_S, self._release_held)
            else:
                fail()
        elif type(event) is Started:
            member.pid = event.worker.pid if event.worker.host == platform.node() else None
            self.sink(event)
        elif type(event) is Finished:
            self.sink(event._replace(value=value_of(event)))
            member.has_ended = member.has_finished = True
            for lane in self._lanes.values():
                self._fail_for_the_ended(lane)
        else:
            self.sink(event)

    def _break_for(self, event: Failed) -> None:
        self.sink(event)
        error = event.error
        self.break_off(f"rank {event.rank} failed with {type(error).__name__}: {text_of(error)} ({event.place})")

    def _hung_up_before(self, failed: _Member) -> bool:
        """Whether a rank is gone without a last word: what another has failed with since may well come of it."""
        is_any = False
        for member in self._members.values():
            if member is not failed and not member.has_ended and (line := member.lines.get(MAIN)) is not None:
                if line.is_hung_up():
                    self.read_rest(member.rank)
                    is_any = is_any or not member.has_ended
                # A process that ends has its files closed one after the other, so a peer may have seen a connection of
                # the framework's close before this line does.
                elif member.pid is not None and is_exiting(member.pid):
                    is_any = True
            elif member.has_left and not member.has_ended:
                is_any = True
        return is_any

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for fail in held:
            fail()

    def _arrive(self, member: _Member, lane: _Lane, meet: Meet) -> None:
        if lane.name == MAIN and meet.place:
            member.last_seen = meet
        if lane.name == DRIVERS:
            self.read_rest(member.rank, but=DRIVERS)  # what it has sent before on other lines comes first
            refusal = self._drivers_broken
        else:
            # An interrupt is the same on every rank, though the first that has heard of it may have ended already.
            refusal = (self._stop if meet.tag == "report" else None) or self.broken
        if refusal is not None:
            self._answer(lane, member.rank, refusal)
            return
        if not lane.waiting:
            lane.since, lane.warn_after_s = time.monotonic(), self._stall_timeout_s
            if not self._looks_for_stalls and lane.name == MAIN:
                self._looks_for_stalls = True
                self.call_in(self._stall_timeout_s, self._look_for_stalls)
        lane.waiting[member.rank] = meet
        first = next(iter(lane.waiting.values()))
        if first[:3] != meet[:3]:
            where = "; ".join(f"rank {rank} is in {each}" for rank, each in sorted(lane.waiting.items()))
            rank = min(lane.waiting)
            self._fail(
                rank,
                lane.waiting[rank].place,
                f"the ranks do different things, and would wait for ever: {where}. Every rank must make the same calls "
                "in the same order",
            )
        elif len(lane.waiting) == self.world_size:
            self._complete(lane, meet.how)
        else:
            self._fail_for_the_ended(lane)

    def _complete(self, lane: _Lane, how: str) -> None:
        met, lane.waiting = lane.waiting, {}
        if how == "barrier":
            message: Any = b""
        elif how == "broadcast":
            message = met[0].data
        else:
            message = [met[rank].data for rank in range(self.world_size)]
        if self._notice is not None and lane.name == MAIN:
            frame, self._notice = framed(dumps(Noticed(message, self._notice))), None
        else:
            frame = framed(dumps(message))
        for rank in met:
            self._send(lane, rank, frame)
        if how == "gather" and not any(message):  # after the answers, while the ranks go on
            for rank in range(self.world_size):
                if (event := met[rank].event) is not None:
                    self._take(self._members[rank], Reported._make(event))

    def _fail_for_the_ended(self, lane: _Lane) -> None:
        """A rank that has ended can never arrive."""
        if not lane.waiting or self.broken is not None or lane.name == DRIVERS:
            return
        ended = [member for member in self._members.values() if member.has_ended]
        if ended:
            told = ", ".join(
                f"rank {member.rank} has {'returned' if member.has_finished else 'ended'} "
                f"after {member.num_reports} report(s)"
                for member in ended
            )
            where = "; ".join(f"rank {rank} waits in {meet}" for rank, meet in sorted(lane.waiting.items()))
            rank, meet = next(iter(lane.waiting.items()))
            self._fail(rank, meet.place, f"{where}; but {told} and can never come")

    def _fail(self, rank: int, place: str, reason: str) -> None:
        """Break for a cause that the coordinator has found itself: it comes first, as what ranks raise comes of it."""
        self.sink(Failed(rank, WorkerGroupError(reason), place))
        self.break_off(reason)

    # -- stalls

    def _look_for_stalls(self) -> None:
        lane = self._lane(MAIN)
        self._looks_for_stalls = bool(lane.waiting)
        if not lane.waiting:  # the next who waits has this called again
            return
        due_in = lane.since + lane.warn_after_s - time.monotonic()
        if due_in <= 0:
            self._tell_of_stall(lane)
            due_in = lane.since + lane.warn_after_s - time.monotonic()
        self.call_in(due_in, self._look_for_stalls)

    def _tell_of_stall(self, lane: _Lane) -> None:
        waited, lane.warn_after_s = lane.warn_after_s, 2 * lane.warn_after_s
        meeting = lane.since

        def tell(places: dict[int, Place]) -> None:
            if lane.since != meeting or not lane.waiting:
                return  # the missing ones have come meanwhile
            absent = [rank for rank in self._members if rank not in lane.waiting]
            missing = ", ".join(map(str, absent))
            meet = next(iter(lane.waiting.values()))
            text = (
                f"{meet.tag} #{meet.number} has waited {waited:g} s for rank(s) {missing} "
                f"(RunConfig.stall_timeout_s): {merged(places)}"
            )
            if self._fails_on_stall:
                self._fail(absent[0], places[absent[0]].line, text)
            else:
                logger.warning("%s", text)

        self._ask_where(tell)

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane(name))
