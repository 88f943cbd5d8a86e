"""What a train function calls to report the rounds of an XGBoost model, and to go on with one that was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from turnout.backends.xgboost import imported_xgboost
from turnout.checkpoint import Checkpoint
from turnout.checks import refused
from turnout.integrations.boosting import Metrics, RoundReports, model_file, rounds_left, warn_if_alone

if TYPE_CHECKING:
    from xgboost import Booster

__all__ = ["ReportCallback", "resume"]

ModelT = TypeVar("ModelT")

_FILENAME = "model.ubj"


class ReportCallback(RoundReports):
    """Reports every round of `xgboost.train`, on every rank, and the model as a checkpoint where one is due.

    Each round is one report: of the newest value of each metric, by the names ``"<data>-<metric>"`` after the names in
    ``evals``. A round without a checkpoint is reported when the next begins, since it is not known before that it is
    not the last. Of `xgboost.cv`, which has no one model, metrics alone are reported, as ``"...-mean"`` and
    ``"...-stdv"``.

    Example:
        >>> def train():
        ...     model, rounds = resume(100)
        ...     xgboost.train(params, rows, rounds, xgb_model=model, callbacks=[ReportCallback(frequency=10)])

    Args:
        metrics: which metrics are reported: a name, or several; a dict gives them other names,
            ``{"loss": "eval-logloss"}``; None for all.
        filename: of the model in the checkpoint; it ends in ``.ubj`` or ``.json``, which is its format.
        frequency: rounds from one checkpoint to the next, counted from the model's first round, also in a run that was
            resumed; 0 for none.
        checkpoint_at_end: whether the last round has one anyway.
        results_postprocessing_fn: called with the metrics that would be reported; returns those that are.

    Raises:
        UsageError: an argument cannot be meant.
        MissingDependencyError: XGBoost is not installed, or too old.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:  # Any: as the constructor takes them
        """Have XGBoost take it for one of its callbacks; also one that comes out of a pickle."""
        # It is none by inheritance, so that XGBoost is imported where a callback is made, and not where it is named.
        imported_xgboost("turnout.xgboost.ReportCallback").callback.TrainingCallback.register(cls)
        return super().__new__(cls)

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = _FILENAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[Metrics], Metrics] | None = None,
    ) -> None:
        super().__init__(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        if not filename.endswith((".ubj", ".json")):
            raise refused("ReportCallback.filename", filename, "ends in .ubj or .json, which is the model's format")
        self._waiting: Metrics | None = None
        """Of the round that may have been the last."""

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = _FILENAME) -> Booster:
        """The model that was reported with a checkpoint.

        Args:
            checkpoint: of a run, such as ``result.checkpoint``.
            filename: as the callback had it.

        Raises:
            CheckpointNotFoundError: it has no such model.
        """
        xgboost = imported_xgboost("turnout.xgboost.ReportCallback")
        with model_file(checkpoint, filename) as path:
            model: Booster = xgboost.Booster(model_file=path)
        return model

    # -- what XGBoost calls

    def before_training(self, model: ModelT) -> ModelT:
        """Begin; returns the model."""
        from xgboost.collective import is_distributed

        self._waiting = None
        warn_if_alone("XGBoost", is_distributed(), "turnout.xgboost.XGBoostTrainer has all ranks train one")
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:  # Any: XGBoost's own
        """The round before was not the last; returns False, so that training goes on."""
        self._report_waiting(None)
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:  # Any: as above
        """A round is done; returns False, so that training goes on."""
        metrics = self._chosen(_newest(evals_log))
        if _is_one(model) and self._is_due(model.num_boosted_rounds()):
            self._report(metrics, model.save_model)
        elif _is_one(model) and self._checkpoint_at_end:
            self._waiting = metrics
        else:
            self._report(metrics, None)
        return False

    def after_training(self, model: ModelT) -> ModelT:
        """Report the last round with its model; returns the model."""
        self._report_waiting(getattr(model, "save_model", None))
        return model

    def _report_waiting(self, save: Callable[[str], object] | None) -> None:
        if self._waiting is not None:
            metrics, self._waiting = self._waiting, None
            self._report(metrics, save)


def resume(num_boost_round: int, *, filename: str = _FILENAME) -> tuple[Booster | None, int]:
    """The newest model of this run, and how many rounds it still lacks.

    `xgboost.train(..., num_boost_round=rounds, xgb_model=model)` goes on with it to the model of an undisturbed run, as
    long as nothing is drawn at random: for ``subsample`` and its kin XGBoost begins anew.

    Args:
        num_boost_round: that the whole model shall have.
        filename: as the `ReportCallback` has it.

    Returns:
        The model, or None at the start of a run; and the number of rounds to train, 0 if it has all of them.

    Raises:
        UsageError: outside a run, or ``num_boost_round`` cannot be meant.
        CheckpointNotFoundError: the run's newest checkpoint has no such model.
    """
    left: tuple[Booster | None, int] = rounds_left(
        num_boost_round,
        lambda checkpoint: ReportCallback.get_model(checkpoint, filename),
        lambda model: int(model.num_boosted_rounds()),
    )
    return left


def _is_one(model: object) -> bool:
    """Whether it is a booster, and not the several of `xgboost.cv`."""
    return hasattr(model, "save_model")


def _newest(evals_log: Mapping[str, Any]) -> Metrics:  # Any: lists of numbers, or of pairs for `xgboost.cv`
    found: Metrics = {}
    for data, metrics in evals_log.items():
        for name, values in metrics.items():
            value = values[-1]
            if isinstance(value, tuple):
                found[f"{data}-{name}-mean"], found[f"{data}-{name}-stdv"] = value
            else:
                found[f"{data}-{name}"] = value
    return found
