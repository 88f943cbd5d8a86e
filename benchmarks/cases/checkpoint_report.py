"""P12 to P14: a `report` that carries a checkpoint to the local disk, against `cp`.

Timed is what holds the train function: the call alone. Turnout's holds until files, names and record are on the disk,
with a checksum of each file; the peer's neither flushes nor checksums. All sides read what is in the page cache.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peer
from benchmarks.disk import fresh_folder, room, write_files
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of

__all__ = ["BENCHMARKS"]

_PROGRAM = PROGRAMS / "checkpoint_report.py"
_GIB = 1 << 30
_MAX_RSS_MB = 200.0

Answer = dict[str, Any]  # Any: JSON
Flush = Callable[[Path], None]


class _Sides:
    """The sides of one benchmark; each call is one turn and returns what the program of the same name prints.

    Args:
        place: on the disk.
        num_files: of the checkpoint.
        size: bytes of each.
    """

    def __init__(self, place: Path, num_files: int, size: int) -> None:
        self._place = place
        self._keep = num_files > 1
        self._source = write_files(place / "source", num_files=num_files, size=size)

    def turnout(self, mode: str) -> Answer:
        """A report of Turnout's, in process."""
        return self._reported(partial(answer_of, OWN_PYTHON), "turnout", mode)

    def ray_train(self, mode: str) -> Answer:
        """A report of Ray Train's."""
        return self._reported(peer.answer_of, "peer", mode)

    def copied(self, flush: Flush) -> Answer:
        """`cp -r`, and what ``flush`` does to the copy."""
        with fresh_folder(self._place, keep=self._keep) as folder:
            target = folder / "copy"
            started = time.perf_counter()
            subprocess.run(["cp", "-r", self._source, target], check=True)
            flush(target)
            return {"held_s": time.perf_counter() - started}

    def _reported(self, run: Callable[..., Answer], side: str, mode: str) -> Answer:
        with (
            self._offered(takes_folder=mode == "async") as source,
            fresh_folder(self._place, keep=self._keep) as folder,
        ):
            return run(_PROGRAM, side, folder, source, mode)

    @contextlib.contextmanager
    def _offered(self, takes_folder: bool) -> Iterator[Path]:
        """The folder to report; a copy where the report removes it."""
        if not takes_folder:
            yield self._source
            return
        with fresh_folder(self._place) as folder:
            yield Path(shutil.copytree(self._source, folder / "source"))


@contextlib.contextmanager
def _sides(num_files: int, size: int) -> Iterator[_Sides]:
    with room() as place:
        yield _Sides(place, num_files, size)


def _flush_nothing(folder: Path) -> None:
    """Leave it to the kernel."""


def _flush_files(folder: Path) -> None:
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _flush_filesystem(folder: Path) -> None:
    subprocess.run(["sync", "--file-system", folder], check=True)


def _series(name: str, role: Role, answers: list[Answer], unit: str = "s") -> Series:
    factor = {"s": 1.0, "ms": 1e3}[unit]
    return Series(name=name, role=role, unit=unit, runs=[each["held_s"] * factor for each in answers])


def _measure_sync(num_files: int, size: int, bound: float, usual_rounds: int, settings: Settings) -> Outcome:
    with _sides(num_files, size) as sides:
        answers = interleave(
            {
                "turnout": partial(sides.turnout, "sync"),
                "floor": partial(sides.copied, _flush_files),
                "syncfs": partial(sides.copied, _flush_filesystem),
                "peer": partial(sides.ray_train, "sync"),
            },
            rounds=settings.rounds(usual_rounds),
        )
    turnout = _series("SYNC report", Role.TURNOUT, answers["turnout"])
    rss = [each["peak_rss_mb"] for each in answers["turnout"]]
    memory = Series(name="peak RSS until it returned, no torch", role=Role.TURNOUT, unit="MB", runs=rss)
    ray_train = _series("SYNC report, nothing flushed", Role.PEER, answers["peer"])
    copy = "`cp`" if num_files == 1 else "`cp -r`"
    floor = _series(f"{copy} and fsync of every file", Role.FLOOR, answers["floor"])
    syncfs = _series(f"{copy} and syncfs", Role.FLOOR, answers["syncfs"])
    over_floor = ratios(f"Turnout over {copy} and fsync", turnout, floor)
    comparisons = [
        over_floor,
        ratios(f"Turnout over {copy} and syncfs", turnout, syncfs),
        ratios("peer over Turnout", ray_train, turnout),
    ]
    return Outcome(
        series=[turnout, memory, ray_train, floor, syncfs, *comparisons],
        checks=[Check.at_most(over_floor, bound), Check.at_most(memory, _MAX_RSS_MB)],
    )


def _measure_async(settings: Settings) -> Outcome:
    with _sides(1, _GIB) as sides:
        answers = interleave(
            {
                "sync": partial(sides.turnout, "sync"),
                "async": partial(sides.turnout, "async"),
                "kept": partial(sides.turnout, "async-keep"),
                "floor": partial(sides.copied, _flush_nothing),
                "peer": partial(sides.ray_train, "async"),
            },
            rounds=settings.rounds(5),
        )
    taken = _series("ASYNC, the caller's folder is taken (the default)", Role.TURNOUT, answers["async"], "ms")
    kept = _series("ASYNC, the caller's folder stays", Role.TURNOUT, answers["kept"], "ms")
    sync = _series("SYNC", Role.TURNOUT, answers["sync"], "ms")
    ray_train = _series("ASYNC, the default", Role.PEER, answers["peer"], "ms")
    floor = _series("`cp`, nothing flushed", Role.FLOOR, answers["floor"], "ms")
    over_sync = ratios("ASYNC over SYNC", taken, sync)
    over_copy = ratios("ASYNC with the folder left over `cp`", kept, floor)
    return Outcome(
        series=[
            taken,
            kept,
            sync,
            ray_train,
            floor,
            over_sync,
            over_copy,
            ratios("peer over Turnout", ray_train, taken),
        ],
        checks=[Check.at_most(over_sync, 0.05), Check.at_most(over_copy, 1.2)],
    )


BENCHMARKS = (
    Benchmark(
        id="P12",
        title="SYNC report of a checkpoint of 1 GiB to local storage, one rank",
        target="at most 1.1 times `cp` and fsync, checksums on; below 200 MB of memory",
        measure=partial(_measure_sync, 1, _GIB, 1.1, 5),
    ),
    Benchmark(
        id="P13",
        title="SYNC report of a checkpoint of 2,000 files of 16 KiB to local storage, one rank",
        target="at most 1.0 times `cp -r` and fsync of every file, checksums on; below 200 MB of memory",
        measure=partial(_measure_sync, 2_000, 16 << 10, 1.0, 7),
    ),
    Benchmark(
        id="P14",
        title="ASYNC report of a checkpoint of 1 GiB to local storage: how long the train function is held",
        target="at most 5 % of SYNC when the folder is taken (the default); at most 1.2 times `cp` when it stays",
        measure=_measure_async,
    ),
)
