"""What follows when an attempt fails: another one or an error, counted by kind, with a wait that grows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turnout.combined_error import combine, text_of
from turnout.config import FailureConfig
from turnout.controllers.base import Ending, Outcome
from turnout.errors import ControllerError, PreemptionError, TrainingFailedError
from turnout.runtime.attempt import Attempt
from turnout.runtime.traceback import users_traceback

__all__ = ["Decision", "FailureKind", "FailurePolicy", "error_of"]

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 30.0


class FailureKind(Enum):
    """What failed, and so which of `FailureConfig`'s limits counts it."""

    TRAINING = "training failure"
    CONTROLLER = "controller failure"
    PREEMPTION = "preemption"

    @classmethod
    def of(cls, outcome: Outcome) -> FailureKind:
        """The kind that an attempt's outcome belongs to."""
        kinds = {Ending.NOT_STARTED: cls.CONTROLLER, Ending.PREEMPTED: cls.PREEMPTION}
        return kinds.get(outcome.ending, cls.TRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows a failed attempt.

    Args:
        retry: whether there is another attempt.
        wait_s: seconds before it. The first retry, and one after an attempt that reported, waits for nothing.
        count: "2 of at most 3", for messages.
        looks_deterministic: the same exception came from the same line as before, before any report.
        is_hopeless: there is none because the group can never be brought up, though the limit allows another.
    """

    retry: bool
    wait_s: float
    count: str
    looks_deterministic: bool
    is_hopeless: bool = False


class FailurePolicy:
    """Counts the failures of one run.

    Args:
        config: the limits, by kind.
    """

    def __init__(self, config: FailureConfig) -> None:
        self._limits = {
            FailureKind.TRAINING: config.max_failures,
            FailureKind.CONTROLLER: config.controller_failure_limit,
            FailureKind.PREEMPTION: config.max_preemption_failures,
        }
        self._counts = dict.fromkeys(FailureKind, 0)
        self._fruitless = 0
        self._num_lasting = 0
        self._last_signature: tuple[type[Exception], str] | None = None

    def decide(self, outcome: Outcome, attempt: Attempt) -> Decision:
        """Count a failure by its kind, and say what follows.

        Where there is no limit, a group that could not be brought up twice in a row for a cause that lasts is not tried
        a third time: once more is for what only seemed to, as a package index that did not answer.

        Args:
            outcome: of the attempt.
            attempt: that has failed.
        """
        kind = FailureKind.of(outcome)
        self._counts[kind] += 1
        count, limit = self._counts[kind], self._limits[kind]
        is_own = kind is FailureKind.TRAINING and not attempt.num_reports
        signature = _signature(attempt) if is_own else None
        looks_deterministic = signature is not None and signature == self._last_signature
        self._last_signature = signature
        self._fruitless = 0 if attempt.num_reports else self._fruitless + 1
        self._num_lasting = self._num_lasting + 1 if outcome.is_lasting else 0
        is_hopeless = limit == -1 and self._num_lasting > 1
        waits = self._fruitless - 1  # the first retry goes at once
        return Decision(
            retry=count <= limit or (limit == -1 and not is_hopeless),
            wait_s=min(_FIRST_WAIT_S * 2 ** (waits - 1), _LONGEST_WAIT_S) if waits > 0 else 0.0,
            count=f"{kind.value} {count}" + ("" if limit == -1 else f", with {limit} allowed"),
            looks_deterministic=looks_deterministic,
            is_hopeless=is_hopeless,
        )


def error_of(outcome: Outcome, attempt: Attempt, decision: Decision, run_name: str) -> TrainingFailedError:
    """The error that `fit()` raises for a failed attempt: the first cause, with the user's own traceback."""
    error: TrainingFailedError
    is_preempted = outcome.ending is Ending.PREEMPTED
    if is_preempted or not attempt.failures:
        kind = PreemptionError if is_preempted else ControllerError
        error = kind(f"run {run_name!r}: {outcome.error or outcome.ending.value}")
        error.__cause__ = outcome.error
        if decision.is_hopeless:
            error.add_note(_HOPELESS)
        if attempt.failures:
            ends = (_told(rank, each).partition("\n")[0] for rank, each in attempt.failures.items())
            error.add_note(f"how the ranks of attempt {attempt.number} ended: {'; '.join(ends)}")
        return error
    rank, cause = _first_cause(attempt.failures)
    error = combine(cause, dict(attempt.failures))
    error = error.with_traceback(users_traceback(cause))
    error.add_note(f"raised on rank {rank} in attempt {attempt.number} of run {run_name!r} ({decision.count})")
    if rank in attempt.tracebacks:
        error.add_note(f"on rank {rank}, {attempt.places[rank]}:\n{attempt.tracebacks[rank]}")
    if attempt.return_values:
        error.add_note(f"rank(s) that had returned by then: {', '.join(map(str, sorted(attempt.return_values)))}")
    # What the others were told of the cause needs not be said again.
    told = [
        _told(other, each)
        for other, each in attempt.failures.items()
        if other != rank and text_of(cause).partition("\n")[0] not in _told(other, each)
    ]
    if told:
        first_lines = (each.partition("\n")[0] for each in told)
        error.add_note(f"afterwards, and maybe because of it: {'; '.join(first_lines)}")
    if decision.looks_deterministic:
        error.add_note(_DETERMINISTIC)
    return error


_DETERMINISTIC = "this looks deterministic: the attempt before raised the same at the same line, before any report"


_HOPELESS = (
    "it is not tried again, though FailureConfig.controller_failure_limit=-1: it has failed twice, and the cause "
    "lasts; a limit above 0 tries as often as it says"
)


def _first_cause(failures: dict[int, Exception]) -> tuple[int, Exception]:
    """The failure that came first, unless it only tells of another rank's, which then came later but happened before.

    Ranks that meet for a commit tell each other what went wrong, and whoever hears of it may be quicker to raise.
    """
    rank, first = next(iter(failures.items()))
    for other, failure in failures.items():
        if other != rank and _told(other, failure) in text_of(first):
            return other, failure
    return rank, first


def _told(rank: int, failure: Exception) -> str:
    return f"rank {rank}: {type(failure).__name__}: {text_of(failure)}"


def _signature(attempt: Attempt) -> tuple[type[Exception], str] | None:
    if not attempt.failures:
        return None
    rank, error = _first_cause(attempt.failures)
    return type(error), attempt.places.get(rank, "")
