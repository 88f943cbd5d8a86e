"""Killed at each point of the protocol, at its first, second and a later passing: nothing is lost, nothing is torn."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import turnout
from tests.crash.lane import Lane, Tally
from turnout.storage.commit import FAILPOINTS
from turnout.testing.faults import Fault

# Of a commit's points, and those around it: which passings are struck, and in which modes.
_WRITES: dict[str, tuple[int, ...]] = {"record.write": (1, 3), "put.write": (1, 2, 3, 4, 6)}
COMMIT: dict[str, tuple[int, ...]] = dict.fromkeys(FAILPOINTS, (1, 2, 4)) | _WRITES
LOCAL = COMMIT | {"put.before": (1, 2, 3, 4, 5), "put.before_rename": (1, 2, 3, 4, 5), "put.after": (1, 2, 3, 4, 5)}
SYNC = LOCAL | {
    "report": (1, 2, 4),
    "run.before_attempt": (1, 1),
    "run.after_attempt": (1, 1),
    "retention.before": (1, 2),
    "remove.before_record": (1, 3),
    "remove.after_record": (1, 3),
    "remove.after": (1, 3),
    "history.before_write": (1, 1),
    "history.before_seal": (1, 1),
    "history.after_seal": (1, 1),
}
ASYNC = COMMIT | {"report.after_stage": (1, 2, 4), "remove.after_record": (1, 2)}
REMOTE_ONLY = {"upload.data"}


def strike(lane: Lane, point: str, on_hit: int, num_steps: int = 8) -> None:
    """Run until the point is passed that often; the program is to die there."""
    status = lane.live(Fault(point=point, action="kill", on_hit=on_hit), num_steps=num_steps)
    assert status == -signal.SIGKILL, f"{point} was not passed {on_hit} times: {lane.output}"
    lane.count("at failpoints")
    lane.audit()


def goes_on(lane: Lane) -> None:
    """Run again, to the end; it costs the import of what seals the history."""
    before = lane.audit().newest
    assert lane.live(num_steps=2) == 0, lane.output
    assert lane.audit().newest == before + 2
    assert lane.told().entered[-1] == before


@pytest.mark.parametrize("point", SYNC)
def test_a_run_that_is_killed_there_keeps_every_checkpoint_whose_report_had_returned(
    tmp_path: Path, tally: Tally, point: str
) -> None:
    lane = Lane(tmp_path, tally, num_to_keep=3 if point.startswith(("retention", "remove", "put")) else None)
    for on_hit in SYNC[point]:
        strike(lane, point, on_hit)
    goes_on(lane)


@pytest.mark.parametrize("point", ASYNC)
def test_a_run_with_async_uploads_that_is_killed_there_keeps_what_it_said_was_committed(
    tmp_path: Path, tally: Tally, point: str
) -> None:
    lane = Lane(tmp_path, tally, mode="MIXED", num_to_keep=2, by_score=True)
    for on_hit in ASYNC[point]:
        strike(lane, point, on_hit)
    before = lane.audit().newest
    assert lane.live(num_steps=2, is_killed=True) == -signal.SIGKILL, lane.output
    assert lane.audit().newest == before + 2


def test_a_run_that_is_killed_in_the_middle_of_a_large_file_offers_none_that_is_cut_short(
    tmp_path: Path, tally: Tally
) -> None:
    lane = Lane(tmp_path, tally, large_bytes=9 << 20)
    for on_hit in (1, 2, 36, 72, 140, 148, 220):  # of the large file mostly: small ones pass in one chunk
        strike(lane, "upload.chunk", on_hit)
    goes_on(lane)


def test_a_run_that_is_killed_while_its_lease_is_renewed_is_taken_over_at_once(tmp_path: Path, tally: Tally) -> None:
    lane = Lane(tmp_path, tally, lease_s=0.6)
    for on_hit in (1, 2, 3):
        strike(lane, "lease.before_renewal", on_hit, num_steps=1_000)
    for on_hit in range(3, 40, 6):
        strike(lane, "put.before_rename", on_hit, num_steps=100)
    goes_on(lane)


def test_every_point_of_the_product_is_struck() -> None:
    sources = Path(turnout.__file__).parent.rglob("*.py")
    call = re.compile(r'failpoint(?:_data)?\("([^"]+)"')
    points = {
        point for source in sources if source.name != "failpoints.py" for point in call.findall(source.read_text())
    }
    assert points == SYNC.keys() | ASYNC.keys() | REMOTE_ONLY | {"lease.before_renewal"}
