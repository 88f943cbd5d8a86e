"""Which checkpoints are kept: the choice, as pure functions, and what carries it out."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from turnout.config import CheckpointConfig
from turnout.errors import StorageError
from turnout.failpoints import failpoint
from turnout.storage.record import CommitRecord, remove_checkpoint
from turnout.storage.run_folder import RunFolder

__all__ = ["Retention", "best_first", "choose_deletions", "score_of"]

logger = logging.getLogger(__name__)


def score_of(metrics: dict[str, Any], attribute: str) -> float | None:  # Any: a metric is whatever JSON can hold
    """The metric that ``attribute`` names, nested ones as ``eval/loss``; None if it is missing, NaN or no number."""
    value: Any = metrics.get(attribute)
    if value is None:
        value = metrics
        for part in attribute.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return value  # an int stays one: large ones differ where their floats do not


def best_first(records: Iterable[CommitRecord], attribute: str | None, order: str) -> list[CommitRecord]:
    """The records, best first; among equals the newer is better, and one without a score is worse than any with one.

    Args:
        records: in any order.
        attribute: the metric that ranks them; None ranks by age, the newest first.
        order: ``"max"`` or ``"min"`` is best.
    """
    newest_first = sorted(records, key=lambda record: record.position, reverse=True)
    if attribute is None:
        return newest_first
    scored = [(score, record) for record in newest_first if (score := score_of(record.metrics, attribute)) is not None]
    scored.sort(key=lambda pair: pair[0] if order == "min" else -pair[0])
    ranked = [record for _, record in scored]
    return ranked + [record for record in newest_first if score_of(record.metrics, attribute) is None]


def choose_deletions(
    records: Sequence[CommitRecord], config: CheckpointConfig, protected: Collection[str] = ()
) -> list[CommitRecord]:
    """Those to remove, oldest first: all but the ``num_to_keep`` best, the newest, and the protected.

    Args:
        records: the committed ones.
        config: how many are kept, and what ranks them.
        protected: names of those in use: the resume point, and those that are being validated.
    """
    if config.num_to_keep is None or not records:
        return []
    ranked = best_first(records, config.checkpoint_score_attribute, config.checkpoint_score_order)
    kept = {record.name for record in ranked[: config.num_to_keep]}
    kept.add(max(records, key=lambda record: record.position).name)
    kept.update(protected)
    return sorted((record for record in records if record.name not in kept), key=lambda record: record.position)


class Retention:
    """Remembers a run's checkpoints and removes those that need not be kept.

    It remembers them so that the ten-thousandth commit costs what the first did. It is the driver's, is called by one
    thread at a time, and not by the one that trains.

    Args:
        run: the run.
        config: what is kept.
        records: those that the run has when it starts.
    """

    def __init__(self, run: RunFolder, config: CheckpointConfig, records: Iterable[CommitRecord] = ()) -> None:
        self.run = run
        self.config = config
        self._records = {record.name: record for record in records}
        self._warned = False

    @property
    def records(self) -> list[CommitRecord]:
        """Those that are kept, oldest first."""
        return sorted(self._records.values(), key=lambda record: record.position)

    def remember(self, record: CommitRecord) -> None:
        """A checkpoint was committed, or its record has changed."""
        self._records[record.name] = record
        attribute = self.config.checkpoint_score_attribute
        if self.config.num_to_keep and attribute and not self._warned and score_of(record.metrics, attribute) is None:
            self._warned = True
            logger.warning(
                "checkpoint %s has no score: its metrics hold no number %r (missing, NaN, or no number). Such "
                "checkpoints rank last; this is said once",
                record.name,
                attribute,
            )

    def apply(self, protected: Collection[str] = (), *, attempt: int | None = None) -> list[CommitRecord]:
        """Remove what need not be kept; what cannot be removed now is tried again by the next call.

        Args:
            protected: names of those in use.
            attempt: that it is done for. One that has been superseded removes nothing more: its choice is no longer
                its to make.

        Returns:
            Those that were removed.
        """
        removed = []
        for record in choose_deletions(self.records, self.config, protected):
            failpoint("retention.before")
            if attempt is not None and self.run.current_attempt() != attempt:
                break
            try:
                remove_checkpoint(self.run.checkpoints / record.name)
            except StorageError as error:
                logger.warning("checkpoint %s should be removed, but cannot be yet: %s", record.name, error)
                continue
            del self._records[record.name]
            removed.append(record)
        return removed
