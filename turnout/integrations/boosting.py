"""What the callbacks of XGBoost and LightGBM share: which metrics a round reports, and when the model goes along."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from turnout.checkpoint import Checkpoint
from turnout.checks import check_file_name, check_integer, refused
from turnout.errors import CheckpointNotFoundError, UsageError
from turnout.session import active, get_checkpoint, get_context, report

__all__ = ["Metrics", "RoundReports", "model_file", "rounds_left"]

logger = logging.getLogger(__name__)

Metrics: TypeAlias = dict[str, Any]
"""Of one round, by name. Any: what the user's own function makes of them goes to `turnout.report` as it is."""


class RoundReports:
    """Reports a round on every rank alike, and has rank 0 bring the model where one is due.

    Args:
        metrics: which metrics are reported: a name, or several, as the framework calls them; a dict gives them other
            names, ``{"loss": "eval-logloss"}``; None for all.
        filename: of the model in the checkpoint.
        frequency: rounds from one checkpoint to the next, counted from the model's first round; 0 for none.
        checkpoint_at_end: whether the last round has one anyway.
        results_postprocessing_fn: called with the metrics that would be reported, by their new names; returns those
            that are.

    Raises:
        UsageError: an argument cannot be meant.
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None,
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Callable[[Metrics], Metrics] | None,
    ) -> None:
        self._metrics = _checked_metrics(metrics)
        check_file_name("ReportCallback.filename", filename, "the model's file")
        remedy = "takes a whole number of rounds, or 0 for no checkpoint while it trains"
        check_integer("ReportCallback.frequency", frequency, at_least=0, remedy=remedy)
        _check_flag("ReportCallback.checkpoint_at_end", checkpoint_at_end)
        _check_function("ReportCallback.results_postprocessing_fn", results_postprocessing_fn)
        self._filename = filename
        self._frequency = int(frequency)
        self._checkpoint_at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn

    def _is_due(self, num_rounds: int) -> bool:
        """Whether a model of so many rounds is to be kept, whatever comes."""
        return self._frequency > 0 and num_rounds % self._frequency == 0

    def _chosen(self, found: Metrics) -> Metrics:
        """What is reported of what was found."""
        chosen = found
        if self._metrics is not None:
            missing = [name for name in self._metrics.values() if name not in found]
            if missing:
                there = ", ".join(map(repr, found)) or "none: it has no data to evaluate"
                raise UsageError(f"ReportCallback.metrics names {missing[0]!r}; the metrics of a round are {there}")
            chosen = {shown: found[name] for shown, name in self._metrics.items()}
        return chosen if self._postprocess is None else self._postprocess(chosen)

    def _report(self, metrics: Metrics, save: Callable[[str], object] | None) -> None:
        """Report a round.

        Args:
            metrics: as they shall be reported.
            save: writes the model to a file of this name; None for no checkpoint.
        """
        if save is None or not _brings_model():
            report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="turnout-model-") as folder:
            save(os.path.join(folder, self._filename))
            report(metrics, checkpoint=Checkpoint.from_directory(folder))


def _brings_model() -> bool:
    """Whether this rank brings the model: rank 0 for all, but in memory each rank keeps its own."""
    context = get_context()
    if context.get_world_rank() == 0:
        return True
    try:
        context.get_storage()
    except NotImplementedError:
        return True
    return False


def warn_if_alone(framework: str, is_together: bool, remedy: str) -> None:
    """Say so, once for all ranks, where each of several trains a model by itself.

    Args:
        framework: its name.
        is_together: whether the ranks train one model.
        remedy: what would have them do so.
    """
    context = get_context()
    if not is_together and context.get_world_size() > 1 and context.get_world_rank() == 0:
        logger.warning(
            "%s trains a model of its own on each of %d ranks, of which rank 0's is kept: %s",
            framework,
            context.get_world_size(),
            remedy,
        )


@contextlib.contextmanager
def model_file(checkpoint: Checkpoint, filename: str) -> Iterator[str]:
    """Where a model that was reported can be read, for the length of the block.

    Args:
        checkpoint: that was reported with it.
        filename: its name there.

    Raises:
        CheckpointNotFoundError: there is no such file in it.
    """
    check_file_name("filename", filename, "the model's file")
    with checkpoint.as_directory() as folder:
        path = os.path.join(folder, filename)
        if not os.path.isfile(path):
            there = ", ".join(sorted(each for each in os.listdir(folder) if not each.startswith("."))) or "nothing"
            raise CheckpointNotFoundError(f"the checkpoint {checkpoint.path} has no model {filename!r}; it has {there}")
        yield path


def rounds_left(num_boost_round: int, get_model: Callable[[Checkpoint], Any], count: Callable[[Any], int]) -> Any:
    """The newest model of the run, and how many rounds it still lacks; see `turnout.xgboost.resume`.

    Args:
        num_boost_round: that it shall have.
        get_model: reads it from a checkpoint.
        count: the rounds that it has.
    """
    remedy = "takes a whole number of rounds of at least 1: of the whole model"
    total = check_integer("resume(): num_boost_round", num_boost_round, at_least=1, remedy=remedy)
    active()  # outside a run this says so
    checkpoint = get_checkpoint()
    if checkpoint is None:
        return None, total
    model = get_model(checkpoint)
    return model, max(0, total - count(model))


def _check_flag(field: str, value: Any) -> None:  # Any: it checks
    if not isinstance(value, bool):
        raise refused(field, value, "takes True or False")


def _check_function(field: str, value: Any) -> None:  # Any: it checks
    if value is not None and not callable(value):
        raise refused(field, value, "takes a function from a dict of metrics to another, or None")


def _checked_metrics(metrics: Any) -> dict[str, str] | None:  # Any: it checks
    """By the names that are reported; None for all."""
    if metrics is None:
        return None
    named = metrics
    if isinstance(metrics, str):
        named = {metrics: metrics}
    elif not isinstance(metrics, Mapping):
        named = {each: each for each in metrics} if isinstance(metrics, (list, tuple)) else {None: None}
    if not all(isinstance(each, str) for pair in named.items() for each in pair):
        remedy = 'takes a metric\'s name such as "eval-logloss", a list of them, or a dict from new names to these'
        raise refused("ReportCallback.metrics", metrics, remedy)
    return dict(named) or None
