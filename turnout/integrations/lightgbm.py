"""What a train function calls to report the rounds of a LightGBM model, and to go on with one that was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnout.backends.lightgbm import imported_lightgbm
from turnout.checkpoint import Checkpoint
from turnout.errors import UsageError
from turnout.integrations.boosting import Metrics, RoundReports, model_file, rounds_left, warn_if_alone

if TYPE_CHECKING:
    import pandas as pd
    from lightgbm import Booster
    from lightgbm.callback import CallbackEnv

__all__ = ["ReportCallback", "normalize_pandas_for_lightgbm", "resume"]

_FILENAME = "model.txt"
_LEARNERS = ("tree_learner", "tree", "tree_type", "tree_learner_type")  # one parameter, and its aliases


class ReportCallback(RoundReports):
    """Reports every round of `lightgbm.train`, on every rank, and the model as a checkpoint where one is due.

    Each round is one report: of each metric's value, by the names ``"<data>-<metric>"`` after ``valid_names``. Of
    `lightgbm.cv`, which has no one model, metrics alone are reported, as ``"...-mean"`` and ``"...-stdv"``.

    LightGBM does not tell a callback that early stopping will end the training, so that nobody knows the last round:
    call `after_training` with the booster then, on every rank.

    Example:
        >>> def train():
        ...     model, rounds = resume(100)
        ...     lightgbm.train(params, rows, rounds, init_model=model, callbacks=[ReportCallback(frequency=10)])

    Args:
        metrics: which metrics are reported: a name, or several; a dict gives them other names,
            ``{"loss": "eval-binary_logloss"}``; None for all.
        filename: of the model in the checkpoint.
        frequency: rounds from one checkpoint to the next, counted from the model's first round, also in a run that was
            resumed; 0 for none.
        checkpoint_at_end: whether the last round has one anyway.
        results_postprocessing_fn: called with the metrics that would be reported; returns those that are.

    Raises:
        UsageError: an argument cannot be meant.
        MissingDependencyError: LightGBM is not installed, or too old.
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = _FILENAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[Metrics], Metrics] | None = None,
    ) -> None:
        imported_lightgbm("turnout.lightgbm.ReportCallback")
        super().__init__(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._last: Metrics = {}
        self._is_kept = False
        """Whether the last round's model was reported."""

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = _FILENAME) -> Booster:
        """The model that was reported with a checkpoint.

        Args:
            checkpoint: of a run, such as ``result.checkpoint``.
            filename: as the callback had it.

        Raises:
            CheckpointNotFoundError: it has no such model.
        """
        lightgbm = imported_lightgbm("turnout.lightgbm.ReportCallback")
        with model_file(checkpoint, filename) as path:
            model: Booster = lightgbm.Booster(model_file=path)
        return model

    def __call__(self, env: CallbackEnv) -> None:
        """A round is done; LightGBM calls this."""
        if env.iteration == env.begin_iteration:
            _refuse_unless_together(env.params)
        self._last = self._chosen(_values(env.evaluation_result_list or []))
        is_last = env.iteration == env.end_iteration - 1
        is_one = not hasattr(env.model, "boosters")  # as those of `lightgbm.cv` are
        self._is_kept = is_one and ((is_last and self._checkpoint_at_end) or self._is_due(env.iteration + 1))
        self._report(self._last, env.model.save_model if self._is_kept else None)

    def after_training(self, model: Booster) -> Booster:
        """Report the model, with the last metrics once more, unless it was reported; returns the model.

        Args:
            model: that `lightgbm.train` has returned. What early stopping has found best is what is kept of it.
        """
        if self._checkpoint_at_end and not self._is_kept:
            self._is_kept = True
            self._report(self._last, model.save_model)
        return model


def resume(num_boost_round: int, *, filename: str = _FILENAME) -> tuple[Booster | None, int]:
    """The newest model of this run, and how many rounds it still lacks.

    `lightgbm.train(..., num_boost_round=rounds, init_model=model)` goes on with it to the model of an undisturbed run,
    as long as nothing is drawn at random: for ``bagging_fraction`` and its kin LightGBM begins anew. It refuses to
    train 0 rounds.

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
        lambda model: int(model.current_iteration()),
    )
    return left


def normalize_pandas_for_lightgbm(df: pd.DataFrame) -> pd.DataFrame:
    """A frame that LightGBM takes, of one whose numbers are Arrow's, as ``to_pandas()`` of a Ray data set gives it.

    Args:
        df: any frame. Columns of numbers and truth values in Arrow's types get pandas' own nullable ones; all others
            stay as they are, and are not copied.
    """
    import pandas as pd

    kinds = {"i": "Int", "u": "UInt", "f": "Float"}
    types = {}
    for column, dtype in df.dtypes.items():
        if isinstance(dtype, pd.ArrowDtype) and dtype.kind == "b":
            types[column] = "boolean"
        elif isinstance(dtype, pd.ArrowDtype) and dtype.kind in kinds:
            types[column] = f"{kinds[dtype.kind]}{8 * dtype.itemsize}"
    return df.astype(types) if types else df


def _refuse_unless_together(params: Mapping[str, Any]) -> None:  # Any: values of LightGBM's own parameters
    """Refuse what would connect the ranks and train a model on each all the same."""
    is_connected = int(params.get("num_machines", 1)) > 1 or bool(params.get("machines"))
    if is_connected and all(params.get(name, "serial") == "serial" for name in _LEARNERS):
        raise UsageError(
            "LightGBM has connected the ranks, and trains a model of its own on each all the same, as its parameter "
            'tree_learner is "serial"; set it to "data", which trains one model on the rows of all'
        )
    remedy = 'set tree_learner="data", and add turnout.lightgbm.get_network_params() to its parameters'
    warn_if_alone("LightGBM", is_connected, remedy)


def _values(results: Sequence[Any]) -> Metrics:  # Any: LightGBM's own tuples, of 4 or 5
    found: Metrics = {}
    for data, name, value, _, *stdv in results:
        if stdv and stdv[0] is not None:
            found[f"{data}-{name}-mean"], found[f"{data}-{name}-stdv"] = value, stdv[0]
        else:
            found[f"{data}-{name}"] = value
    return found
