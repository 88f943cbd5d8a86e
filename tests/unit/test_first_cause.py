"""Which of several ranks' failures `fit()` raises."""

from __future__ import annotations

from turnout import CheckpointError, FailureConfig, UsageError, WorkerGroupError
from turnout.controllers.base import Outcome
from turnout.runtime.attempt import Attempt
from turnout.runtime.failures import FailurePolicy, error_of
from turnout.session.events import Failed


def raised(*failures: tuple[int, Exception]) -> Exception:
    """What `fit()` raises if ranks fail so, in this order."""
    attempt = Attempt(0, lambda metrics, saved: None, lambda saved: None, lambda rank, data: None)
    for rank, error in failures:
        attempt.take(Failed(rank, error, f"train.py:{rank}"))
    decision = FailurePolicy(FailureConfig()).decide(Outcome(), attempt)
    return error_of(Outcome(), attempt, decision, "run")


def test_the_first_failure_is_the_cause() -> None:
    error = raised((1, ValueError("first")), (0, WorkerGroupError("rank 1 failed with ValueError: first")))
    assert isinstance(error, ValueError)
    assert "raised on rank 1" in "\n".join(error.__notes__)


def test_a_failure_that_only_tells_of_another_ranks_is_not_the_cause_though_it_came_first() -> None:
    told = CheckpointError("checkpoint 1 was not committed: rank 0: UsageError: the name is taken")
    error = raised((1, told), (0, UsageError("the name is taken")))
    assert isinstance(error, UsageError)
    assert "raised on rank 0" in "\n".join(error.__notes__)
    assert "rank 1" not in "\n".join(error.__notes__)
