"""P1: what `import turnout` adds to the start of an interpreter."""

from __future__ import annotations

from functools import partial

from benchmarks import peer
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, differences, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of, time_process

__all__ = ["BENCHMARK"]

_FIVE_NAMES = "from turnout import DataParallelTrainer, ScalingConfig, RunConfig, Checkpoint, report"


def _measure(settings: Settings) -> Outcome:
    timings = interleave(
        {
            "floor": partial(time_process, OWN_PYTHON, "-c", "pass"),
            "bare": partial(time_process, OWN_PYTHON, "-c", "import turnout"),
            "five": partial(time_process, OWN_PYTHON, "-c", _FIVE_NAMES),
            "peer's floor": partial(time_process, peer.python(), "-c", "pass"),
            "peer": partial(time_process, peer.python(), "-c", "import ray.train"),
        },
        rounds=settings.rounds(11),
    )

    def series(side: str, name: str, role: Role) -> Series:
        return Series(name=name, role=role, unit="ms", runs=[each.wall_ms for each in timings[side]])

    floor = series("floor", "`python -c pass`", Role.FLOOR)
    peers_floor = series("peer's floor", "`python -c pass` of the peer's environment", Role.FLOOR)
    bare = differences("`import turnout` adds", series("bare", "", Role.TURNOUT), floor)
    five = differences("taking five names adds", series("five", "", Role.TURNOUT), floor)
    ray_train = differences("`import ray.train` adds", series("peer", "", Role.PEER), peers_floor)
    heavy = answer_of(OWN_PYTHON, PROGRAMS / "after_running.py", "-c", _FIVE_NAMES)["heavy_modules"]
    return Outcome(
        series=[bare, five, ray_train, floor, peers_floor, ratios("peer over five names", ray_train, five)],
        checks=[
            Check.at_most(bare, 60),
            Check.at_most(five, 80),
            Check.none_of("heavy modules in `sys.modules`: none", heavy),
        ],
    )


BENCHMARK = Benchmark(
    id="P1",
    title="`import turnout` in a fresh interpreter, over `python -c pass`",
    target="at most +60 ms; with five names taken at most +80 ms; no heavy module loaded",
    measure=_measure,
)
