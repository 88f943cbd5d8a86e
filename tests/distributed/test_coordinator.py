"""The channel by itself: ranks that are threads or processes of the test meet at a coordinator."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import pytest

from tests.distributed.ranks import wait_until
from turnout import PreemptionInfo, WorkerGroupError
from turnout.controllers.coordinator import Coordinator
from turnout.controllers.lines import Address, ServedLine, framed
from turnout.controllers.wire import WireChannel
from turnout.process_identity import process_state
from turnout.session.events import Died, Failed, Finished, RankInfo, Reported, Started, WorkerEvent, WorkerInfo


class Meeting:
    """A coordinator that a thread serves, and ranks that are threads too.

    Args:
        world_size: how many ranks there are.
    """

    def __init__(self, world_size: int, **options: Any) -> None:
        self.events: list[WorkerEvent] = []
        self.breaks: list[str] = []
        self.lost: list[int] = []
        self.actions: list[Callable[[], None]] = []
        self.coordinator = Coordinator(
            world_size,
            self.events.append,
            on_break=self.breaks.append,
            on_disconnect=options.pop("on_disconnect", self.lost.append),
            **options,
        )
        self.channels: dict[int, WireChannel] = {}
        self._is_over = False
        self._pool = ThreadPoolExecutor(world_size)
        self._thread = threading.Thread(target=self.coordinator.serve, args=(self._is_done,))

    def __enter__(self) -> Self:
        self._thread.start()
        for rank in range(self.coordinator.world_size):
            self.channels[rank] = WireChannel(
                self.coordinator.address, RankInfo(rank=rank, world_size=self.coordinator.world_size)
            )
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self.channels.values():
            channel.close()
        self._is_over = True
        self.coordinator.wake()
        self._thread.join()
        self.coordinator.__exit__(None, None, None)
        self._pool.shutdown()

    @property
    def thread_id(self) -> int:
        """Of the thread that serves."""
        assert self._thread.ident is not None, "it has been started"
        return self._thread.ident

    def call(self, rank: int, *arguments: Any, branch: str | None = None) -> Future[Any]:
        """Have a rank meet the others."""
        channel = self.channels[rank] if branch is None else self.channels[rank].branch(branch)
        return self._pool.submit(channel.exchange, *arguments)

    def within(self, action: Callable[[], None]) -> None:
        """Do something in the loop."""
        self.actions.append(action)
        self.coordinator.wake()

    def _is_done(self) -> bool:
        while self.actions:
            self.actions.pop(0)()
        return self._is_over


def error_of(future: Future[Any]) -> str:
    error = future.exception(10)
    assert isinstance(error, WorkerGroupError)
    return str(error)


def test_a_gather_gives_every_rank_all_values_by_rank_and_a_broadcast_rank_zeros() -> None:
    with Meeting(3) as meeting:
        gathered = [meeting.call(rank, "gather", f"of {rank}", "gather") for rank in (2, 0, 1)]
        assert [each.result(10) for each in gathered] == [["of 0", "of 1", "of 2"]] * 3
        told = [meeting.call(rank, "tell", f"of {rank}", "broadcast") for rank in (1, 2, 0)]
        assert [each.result(10) for each in told] == ["of 0"] * 3
        met = [meeting.call(rank, "meet", f"of {rank}", "barrier") for rank in (1, 2, 0)]
        assert [each.result(10) for each in met] == [None] * 3


class Untouchable:
    def __reduce__(self) -> Any:
        raise AssertionError("it was pickled")


def test_a_value_travels_only_from_where_it_is_needed() -> None:
    with Meeting(2) as meeting:
        told = [meeting.call(0, "tell", 1, "broadcast"), meeting.call(1, "tell", Untouchable(), "broadcast")]
        assert [each.result(10) for each in told] == [1, 1]
        met = [meeting.call(rank, "meet", Untouchable(), "barrier") for rank in (0, 1)]
        assert [each.result(10) for each in met] == [None, None]


def test_a_value_that_does_not_pickle_is_refused_where_it_is_and_the_meeting_can_still_be_held() -> None:
    with Meeting(2) as meeting:
        with pytest.raises(TypeError, match="lock"):
            meeting.channels[0].exchange("tell", threading.Lock(), "broadcast")
        told = [meeting.call(rank, "tell", rank, "broadcast") for rank in (0, 1)]
        assert [each.result(10) for each in told] == [0, 0]


def test_a_broadcast_of_a_hundred_megabytes_arrives_whole() -> None:
    value = os.urandom(1 << 20) * 100  # 105 MB
    with Meeting(3) as meeting:
        told = [meeting.call(rank, "tell", value if rank == 0 else None, "broadcast") for rank in (0, 1, 2)]
        assert all(each.result(30) == value for each in told)


def test_a_rank_that_does_not_read_a_large_value_holds_up_nobody_else() -> None:
    with Meeting(3) as meeting:
        stuck = meeting.channels.pop(2)
        stuck._send(_meet("tell", "broadcast"))
        value = bytes(1 << 25)
        told = [meeting.call(rank, "tell", value, "broadcast") for rank in (0, 1)]
        assert all(each.result(10) == value for each in told)
        meeting.channels[0].publish(Reported(0, 0, {"a": 1}, None))
        wait_until(lambda: meeting.events, "an event of rank 0")
        stuck.close()


def _meet(tag: str, how: str) -> bytes:
    import pickle

    return pickle.dumps((tag, 1, how, "", b""))


def test_a_rank_that_stops_in_the_middle_of_a_message_holds_up_nobody_and_one_that_dies_there_is_told_of() -> None:
    with Meeting(2) as meeting:
        broken = meeting.channels.pop(1)
        os.write(broken._line.fileno(), framed(bytes(100))[0][:50])
        meeting.channels[0].publish(Reported(0, 0, {"a": 1}, None))
        wait_until(lambda: meeting.events, "an event of rank 0")
        assert meeting.lost == []
        broken.close()
        wait_until(lambda: meeting.lost == [1], "the loss of rank 1")


def test_ranks_that_do_different_things_are_both_told_so() -> None:
    with Meeting(2) as meeting:
        futures = [meeting.call(0, "barrier", None, "barrier"), meeting.call(1, "report", 1, "gather")]
        texts = [error_of(each) for each in futures]
        assert texts[0] == texts[1]
        assert "rank 0 is in barrier #1" in texts[0]
        assert "rank 1 is in report #1" in texts[0]
        wait_until(lambda: len(meeting.breaks) == 1, "the controller to be told, once")


def test_each_thing_is_counted_by_itself_so_that_one_skipped_is_seen() -> None:
    with Meeting(2) as meeting:
        for _ in range(2):
            for each in [meeting.call(rank, "barrier", None, "barrier") for rank in (0, 1)]:
                each.result(10)
        meeting.channels[1]._counts["barrier"] += 1  # as if it had been in one more
        texts = [error_of(each) for each in [meeting.call(rank, "barrier", None, "barrier") for rank in (0, 1)]]
        assert "rank 0 is in barrier #3" in texts[0]
        assert "rank 1 is in barrier #4" in texts[0]


def test_the_same_calls_with_another_meaning_do_not_meet() -> None:
    with Meeting(2) as meeting:
        futures = [meeting.call(0, "thing", 1, "gather"), meeting.call(1, "thing", 1, "broadcast")]
        assert all("different things" in error_of(each) for each in futures)


def test_an_event_goes_with_a_meeting_to_which_nobody_brings_anything() -> None:
    with Meeting(2) as meeting:
        reports = [Reported(rank, 0, {"rank": rank}, None) for rank in (0, 1)]
        met = [meeting.call(rank, "report", None, "gather", reports[rank]) for rank in (1, 0)]
        assert [each.result(10) for each in met] == [[None, None]] * 2
        wait_until(lambda: meeting.events == reports, "the events, which are taken after the answers have gone")
        met = [meeting.call(rank, "report", rank or None, "gather", reports[rank]) for rank in (1, 0)]
        assert [each.result(10) for each in met] == [[None, 1]] * 2
        assert meeting.events == reports


def test_a_wait_for_a_rank_that_has_ended_fails_at_once_also_if_it_came_first() -> None:
    with Meeting(3) as meeting:
        early = meeting.call(0, "barrier", None, "barrier")
        wait_until(lambda: meeting.coordinator.waiting == {0}, "rank 0 to wait")
        meeting.channels[2].publish(Finished(2, "value"))
        assert "rank 2 has returned after 0 report(s) and can never come" in error_of(early)
        assert error_of(meeting.call(1, "barrier", None, "barrier")) == error_of(early)
        finished = next(each for each in meeting.events if isinstance(each, Finished))
        assert finished.value == "value"


def test_a_failure_breaks_every_wait_and_comes_before_what_follows_from_it() -> None:
    with Meeting(3) as meeting:
        waits = [
            meeting.call(0, "barrier", None, "barrier"),
            meeting.call(1, "upload", None, "barrier", branch="uploads"),
        ]
        wait_until(lambda: meeting.coordinator.waiting == {0}, "rank 0 to wait")
        meeting.channels[2].publish(Failed(2, ValueError("real cause"), "train.py:3"))
        assert all("rank 2 failed with ValueError: real cause (train.py:3)" in error_of(each) for each in waits)
        assert [type(each) for each in meeting.events] == [Failed]


def test_a_failure_waits_for_the_death_that_it_comes_of() -> None:
    with Meeting(2) as meeting:
        meeting.channels.pop(1).close()
        wait_until(lambda: meeting.lost == [1], "the loss of rank 1")
        meeting.channels[0].publish(Failed(0, ConnectionResetError("by peer"), "train.py:3"))
        wait_until(lambda: 0 not in meeting.coordinator.unfinished, "rank 0's last word")
        assert meeting.events == []
        meeting.within(lambda: meeting.coordinator.died(1, "was killed by SIGKILL"))
        wait_until(lambda: len(meeting.events) == 2, "both events")
        assert [type(each) for each in meeting.events] == [Died, Failed]


def test_a_failure_waits_for_the_death_of_a_process_that_ends_and_has_not_hung_up_yet() -> None:
    ended = subprocess.Popen(["true"])
    wait_until(lambda: process_state(ended.pid) == "Z", "the end of a process")
    with Meeting(2) as meeting:
        started = Started(1, WorkerInfo(meeting.channels[1].ranks, platform.node(), ended.pid))
        meeting.channels[1].publish(started)
        wait_until(lambda: meeting.events == [started], "the start of rank 1")
        meeting.channels[0].publish(Failed(0, ConnectionResetError("by peer"), "train.py:3"))
        wait_until(lambda: 0 not in meeting.coordinator.unfinished, "rank 0's last word")
        assert meeting.events == [started]
        meeting.within(lambda: meeting.coordinator.died(1, "was killed by SIGKILL"))
        wait_until(lambda: len(meeting.events) == 3, "both events")
        assert [type(each) for each in meeting.events[1:]] == [Died, Failed]
    ended.wait()


def test_what_a_rank_said_before_it_was_lost_is_heard_first() -> None:
    with Meeting(2) as meeting:
        for number in range(100):
            meeting.channels[1].publish(Reported(1, number, {"number": number}, None))
        meeting.channels.pop(1).close()
        meeting.within(lambda: meeting.coordinator.read_rest(1))
        meeting.within(lambda: meeting.coordinator.died(1, "is gone"))
        wait_until(lambda: any(isinstance(each, Died) for each in meeting.events), "the death of rank 1")
        assert len(meeting.events) == 101
        assert isinstance(meeting.events[-1], Died)
        assert meeting.events[-1].reason.endswith("reports made: 100")


def test_branches_meet_beside_the_main_line_and_are_broken_with_it() -> None:
    with Meeting(2) as meeting:
        waits = meeting.call(0, "barrier", None, "barrier")
        beside = meeting.call(1, "upload", 1, "gather", branch="uploads")
        assert meeting.channels[0].branch("uploads") is meeting.channels[0].branch("uploads")
        assert meeting.channels[0].branch("uploads").exchange("upload", 0, "gather") == [0, 1]
        assert beside.result(10) == [0, 1]
        meeting.within(lambda: meeting.coordinator.break_off("it is over"))
        assert error_of(waits) == "it is over"
        assert error_of(meeting.call(0, "upload", 0, "gather", branch="uploads")) == "it is over"


def test_an_interrupt_ends_the_next_report_of_all_ranks_and_lets_uploads_meet() -> None:
    with Meeting(2) as meeting:
        waits = meeting.call(0, "report", None, "gather")
        wait_until(lambda: meeting.coordinator.waiting == {0}, "rank 0 to wait")
        meeting.within(meeting.coordinator.stop)
        assert isinstance(waits.exception(10), KeyboardInterrupt)
        assert isinstance(meeting.call(1, "report", None, "gather").exception(10), KeyboardInterrupt)
        beside = [meeting.call(rank, "upload", None, "barrier", branch="uploads") for rank in (0, 1)]
        assert [each.result(10) for each in beside] == [None, None]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sockets whose names are no files")
def test_a_coordinator_that_is_killed_leaves_no_file() -> None:
    with Meeting(1) as meeting:
        assert str(meeting.coordinator.address.place).startswith("\0turnout-")


def test_who_does_not_know_the_key_is_refused_without_harm(caplog: pytest.LogCaptureFixture) -> None:
    with Meeting(2) as meeting, caplog.at_level(logging.WARNING):
        address = meeting.coordinator.address
        with pytest.raises((EOFError, OSError)):
            WireChannel(Address(address.place, b"x" * 32), RankInfo(rank=0, world_size=2))
        met = [meeting.call(rank, "meet", None, "barrier") for rank in (0, 1)]
        assert [each.result(10) for each in met] == [None, None]
    assert [each.getMessage() for each in caplog.records] == [
        "a connection that is none of this run's ranks was refused: it does not know the key"
    ]


@pytest.mark.parametrize(
    "says", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, framed(b"short")[0], framed(bytes(64))[0]]
)
def test_strangers_who_say_nothing_or_nonsense_hold_up_nobody(says: bytes) -> None:
    with Meeting(2, address="127.0.0.1") as meeting, contextlib.ExitStack() as strangers:
        place = meeting.coordinator.address.place
        for _ in range(20):
            stranger = strangers.enter_context(socket.create_connection((place[0], int(place[1]))))
            with contextlib.suppress(OSError):
                stranger.sendall(says)
        started = time.monotonic()
        met = [meeting.call(rank, "meet", None, "barrier") for rank in (0, 1)]
        assert [each.result(10) for each in met] == [None, None]
        assert time.monotonic() - started < 1


def test_a_rank_does_not_trust_whoever_listens_in_the_coordinators_place() -> None:
    with _false_coordinator() as place, pytest.raises(PermissionError, match="is not the coordinator"):
        WireChannel(Address(place, b"k" * 32), RankInfo(rank=0, world_size=2))


@contextlib.contextmanager
def _false_coordinator() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            plain, _ = listener.accept()
            line = ServedLine(plain, b"another key".ljust(32))
            line.send(framed(bytes(32)))
            with contextlib.suppress(OSError):
                plain.setblocking(True)
                while plain.recv(1024):
                    pass
            line.close()

        thread = threading.Thread(target=listen)
        thread.start()
        yield listener.getsockname()
        thread.join()


def test_a_stall_is_told_with_where_all_are_and_ends_the_run_if_it_shall(caplog: pytest.LogCaptureFixture) -> None:
    with Meeting(2, stall_timeout_s=0.2, fails_on_stall=True) as meeting:
        text = error_of(meeting.call(0, "barrier", None, "barrier"))
    assert "barrier #1 has waited 0.2 s for rank(s) 1 (RunConfig.stall_timeout_s): rank 0 waits in barrier #1" in text
    assert "rank 1 does not answer" in text
    assert isinstance(meeting.events[0], Failed)
    assert meeting.events[0].rank == 1


def test_ranks_of_other_processes_meet_too_and_their_end_is_seen() -> None:
    with Meeting(2) as meeting:
        meeting.channels.pop(1).close()
        wait_until(lambda: meeting.lost == [1], "the loss of rank 1's first line")
        address = meeting.coordinator.address
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads: the copy uses none
            pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                channel = WireChannel(address, RankInfo(rank=1, world_size=2))
                channel.exchange("meet", "theirs", "gather")
                os._exit(0)
            os._exit(1)
        assert meeting.call(0, "meet", "mine", "gather").result(10) == ["mine", "theirs"]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        wait_until(lambda: meeting.lost == [1, 1], "the loss of rank 1")


def test_a_notice_is_known_to_all_from_their_next_meeting_on_and_not_from_one_in_the_background() -> None:
    notice = PreemptionInfo(5, {"node": [1]})
    with Meeting(2) as meeting:
        meeting.within(lambda: meeting.coordinator.notify(notice))
        for each in [meeting.call(rank, "upload", None, "barrier", branch="upload") for rank in (0, 1)]:
            each.result(5)
        assert [meeting.channels[rank].notice for rank in (0, 1)] == [None, None]
        calls = [meeting.call(rank, "gather", rank, "gather") for rank in (0, 1)]
        assert [each.result(5) for each in calls] == [[0, 1], [0, 1]]
        assert [meeting.channels[rank].notice for rank in (0, 1)] == [notice, notice]
        for each in [meeting.call(rank, "barrier", None, "barrier") for rank in (0, 1)]:
            each.result(5)
        assert [meeting.channels[rank].notice for rank in (0, 1)] == [notice, notice]


def test_what_a_rank_prints_line_by_line_is_passed_on_together_and_whole() -> None:
    pieces: list[bytes] = []
    with Meeting(1, on_output=lambda rank, data: pieces.append(data)) as meeting:
        line = meeting.channels[0].output_line()
        printed = [f"line {number}\n".encode() for number in range(500)]
        started = time.monotonic()
        for each in printed:
            line.send_raw(each)
            time.sleep(0.0001)
        wait_until(lambda: b"".join(pieces) == b"".join(printed), "all lines")
        assert len(pieces) <= (time.monotonic() - started) / 0.005 + 1  # a look in 5 ms, and the first at once
        line.close()


@pytest.mark.parametrize(("num_cores", "looks_on"), [(2, True), (1, False)])
def test_the_loop_looks_on_while_it_waits_unless_the_ranks_need_the_core(
    num_cores: int, looks_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: num_cores)
    with Meeting(2, linger_s=60.0) as meeting:
        met = [meeting.call(rank, "meet", None, "barrier") for rank in (0, 1)]
        assert [each.result(10) for each in met] == [None, None]
        clock = time.pthread_getcpuclockid(meeting.thread_id)
        started = time.clock_gettime(clock)
        if looks_on:
            wait_until(lambda: time.clock_gettime(clock) - started > 0.1, "the loop to look on")
        else:
            time.sleep(0.5)
            assert time.clock_gettime(clock) - started <= 0.1
