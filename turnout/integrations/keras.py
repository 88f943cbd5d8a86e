"""`ReportCallback`: what Keras calls while it fits, to report metrics and checkpoints; on each of its backends."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnout.checkpoint import Checkpoint
from turnout.checks import check_choice, refused
from turnout.config import CheckpointUploadMode
from turnout.dependency import imported
from turnout.errors import UsageError
from turnout.session import get_context, report

__all__ = ["ReportCallback"]

keras: Any = imported("keras", at_least="3.0", extra="tensorflow", needed_by="ReportCallback")  # Any: it has no types

_MODEL = "model.keras"
_PROGRESS = "progress.json"
_OF_NUMBERED = ("epoch", "train_batch", "test_batch", "predict_batch")  # which Keras tells with their number
_EVENTS = tuple(f"{what}_{end}" for what in (*_OF_NUMBERED, "train", "test", "predict") for end in ("begin", "end"))


class ReportCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Reports what a model has learnt while Keras fits it, with the model as a checkpoint.

    Events are named as Keras names them: ``"epoch_end"`` stands for `on_epoch_end`. Where both are due at an event, one
    report has the metrics and the checkpoint; a checkpoint always comes with metrics. Every rank passes the callback,
    and rank 0's model is what is kept, as all have the same.

    Args:
        checkpoint_on: the event, or the events, at which the model is reported as a checkpoint.
        report_metrics_on: the event, or the events, at which metrics are reported.
        metrics: which of what Keras logs: a name, several, or a dict from the names to report to Keras's own. None
            reports all.
        checkpoint_upload_mode: SYNC goes on when the checkpoint is safe, ASYNC while it is being stored.

    Raises:
        UsageError: an argument cannot be meant.

    Example:
        >>> def train_fn():
        ...     checkpoint, initial_epoch = turnout.get_checkpoint(), 0
        ...     if checkpoint is None:
        ...         model = build_model()
        ...     else:
        ...         model = ReportCallback.get_model(checkpoint)
        ...         initial_epoch = ReportCallback.get_initial_epoch(checkpoint)
        ...     model.fit(data, epochs=10, initial_epoch=initial_epoch, callbacks=[ReportCallback()])
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        *,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    ) -> None:
        super().__init__()
        self._checkpoint_on = _checked_events("checkpoint_on", checkpoint_on)
        self._reports_on = self._checkpoint_on | _checked_events("report_metrics_on", report_metrics_on)
        self._metrics = _checked_metrics(metrics)
        if checkpoint_upload_mode not in (CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC):
            raise refused("checkpoint_upload_mode", checkpoint_upload_mode, "takes CheckpointUploadMode.SYNC or ASYNC")
        self._upload_mode = checkpoint_upload_mode
        self._epoch = self._initial_epoch = 0
        """The latter is that of a fit that goes on from the model as it is."""
        self._is_fitting = False
        # On this object and for these events alone: Keras waits after each batch if a callback's class has its event.
        for event in self._reports_on - {"epoch_begin", "epoch_end", "train_begin", "train_end", "test_begin"}:
            setattr(self, f"on_{event}", self._hook(event))

    @staticmethod
    def get_model(checkpoint: Checkpoint, **options: Any) -> Any:  # Any: as Keras takes them; a keras.Model
        """The model that this callback has reported, compiled as it was and with the state of its optimizer.

        Args:
            checkpoint: of a run, as `turnout.get_checkpoint` gives it.
            options: of `keras.saving.load_model`, as ``custom_objects``.

        Raises:
            UsageError: the checkpoint is none of this callback's.
        """
        with checkpoint.as_directory() as folder:
            return keras.saving.load_model(_file_of(folder, _MODEL), **options)

    @staticmethod
    def get_initial_epoch(checkpoint: Checkpoint) -> int:
        """The ``initial_epoch`` of a ``fit`` that goes on where the checkpoint was made.

        In the middle of an epoch that is the same one: Keras can begin at its start only.

        Args:
            checkpoint: as for `get_model`.

        Raises:
            UsageError: the checkpoint is none of this callback's.
        """
        with checkpoint.as_directory() as folder, open(_file_of(folder, _PROGRESS), encoding="utf-8") as file:
            initial_epoch: int = json.load(file)["initial_epoch"]
        return initial_epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keras begins to fit."""
        self._is_fitting = True
        self._take("train_begin", logs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """An epoch begins."""
        self._epoch = self._initial_epoch = epoch
        self._take("epoch_begin", logs)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """A validation begins; within a fit, the epoch's batches are all done."""
        if self._is_fitting:
            self._initial_epoch = self._epoch + 1
        self._take("test_begin", logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """An epoch has ended."""
        self._initial_epoch = epoch + 1
        self._take("epoch_end", logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keras has fitted."""
        self._is_fitting = False
        self._take("train_end", logs)

    def _hook(self, event: str) -> Callable[..., None]:
        if event.rpartition("_")[0] in _OF_NUMBERED:
            return lambda number, logs=None: self._take(event, logs)
        return lambda logs=None: self._take(event, logs)

    def _take(self, event: str, logs: dict[str, Any] | None) -> None:
        if event not in self._reports_on:
            return
        metrics = self._chosen(event, _numbers(logs or {}))
        if event not in self._checkpoint_on:
            report(metrics)
            return
        folder = self._saved()
        try:
            checkpoint = None if folder is None else Checkpoint.from_directory(folder)
            report(metrics, checkpoint, checkpoint_upload_mode=self._upload_mode)
        finally:
            if folder is not None:  # the report has taken what it needs
                shutil.rmtree(folder, ignore_errors=True)

    def _chosen(self, event: str, logs: dict[str, Any]) -> dict[str, Any]:
        if self._metrics is None:
            return logs
        missing = [name for name in self._metrics.values() if name not in logs]
        if missing:
            known = ", ".join(map(repr, logs)) or "nothing"
            raise refused("ReportCallback.metrics", missing[0], f"Keras does not log it at {event}; it logs {known}")
        return {name: logs[own] for name, own in self._metrics.items()}

    def _saved(self) -> str | None:
        """A folder with the model, on the rank whose model is kept."""
        is_kept = get_context().get_world_rank() == 0
        # Where TensorFlow trains one model on all ranks, they meet to read it.
        if not is_kept and not _is_mirrored(self.model):
            return None
        folder = tempfile.mkdtemp(prefix="turnout-keras-")
        try:
            self.model.save(os.path.join(folder, _MODEL))
            with open(os.path.join(folder, _PROGRESS), "w", encoding="utf-8") as file:
                json.dump({"initial_epoch": self._initial_epoch}, file)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if is_kept:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _is_mirrored(model: Any) -> bool:  # Any: a keras.Model
    strategy = getattr(model, "distribute_strategy", None)
    return strategy is not None and strategy.num_replicas_in_sync > 1


def _numbers(logs: Mapping[str, Any]) -> dict[str, Any]:  # Any: numbers, or tensors of the backend's
    """What Keras logs, in Python's own numbers, as it may log tensors after a batch."""
    numbers: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            numbers[name] = _numbers(value)
        elif keras.ops.is_tensor(value):
            numbers[name] = keras.ops.convert_to_numpy(value).tolist()
        else:
            numbers[name] = value
    return numbers


def _checked_events(field: str, events: Any) -> frozenset[str]:
    """The events as a set."""
    several = [events] if isinstance(events, str) else events
    if not isinstance(several, (list, tuple, set, frozenset)):
        raise refused(f"ReportCallback.{field}", events, "takes an event of Keras's, or a list of them")
    for event in several:
        check_choice(f"ReportCallback.{field}", event, _EVENTS)
    return frozenset(several)


def _checked_metrics(metrics: Any) -> dict[str, str] | None:
    """From the names to report to Keras's own."""
    if metrics is None:
        return None
    named = {metrics: metrics} if isinstance(metrics, str) else metrics
    if isinstance(named, (list, tuple)):
        named = {name: name for name in named}
    if not isinstance(named, Mapping) or not all(isinstance(each, str) for pair in named.items() for each in pair):
        remedy = "takes a name, a list of names, or a dict from names to Keras's own"
        raise refused("ReportCallback.metrics", metrics, remedy)
    return dict(named)


def _file_of(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        found = ", ".join(sorted(os.listdir(folder))) or "nothing"
        raise UsageError(f"the checkpoint has no {name}, and so is none of ReportCallback's; it holds {found}")
    return path
