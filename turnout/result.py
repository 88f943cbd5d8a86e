"""`Result`: what `fit()` returns, and what a run's folder says of it afterwards."""

from __future__ import annotations

import os
from typing import Any

from turnout.checkpoint import Checkpoint
from turnout.checks import check_choice, check_text, refused
from turnout.errors import CheckpointNotFoundError, StorageError, TrainingFailedError, UsageError

__all__ = ["Result"]


class Result:
    """What a run ended with.

    Args:
        metrics: rank 0's last reported metrics; None if nothing was reported.
        checkpoint: the last reported checkpoint; None if none was.
        error: what a run that is read back from storage ended with; `fit()` raises instead.
        path: the run's folder; None for a run in memory.
        metrics_dataframe: rank 0's reports; None reads them from ``path`` when they are asked for.
        best_checkpoints: the checkpoints that are kept, with their metrics, worst first; None for a run in memory.
        return_value: what the train function returned on rank 0.
        return_values: what it returned on each rank, by rank.
    """

    def __init__(
        self,
        metrics: dict[str, Any] | None = None,  # Any: a metric is whatever JSON can hold
        checkpoint: Checkpoint | None = None,
        error: Exception | None = None,
        path: str | None = None,
        metrics_dataframe: Any = None,  # Any: pandas has no types
        best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None,
        return_value: Any = None,  # Any: the user's own
        return_values: list[Any] | None = None,
        *,
        _storage_filesystem: Any = None,  # Any: pyarrow has no types
    ) -> None:
        self.metrics = metrics
        self.checkpoint = checkpoint
        self.error = error
        self.path = path
        self.best_checkpoints = best_checkpoints
        self.return_value = return_value
        self.return_values = [] if return_values is None else return_values
        self._metrics_dataframe = metrics_dataframe
        self._storage_filesystem = _storage_filesystem

    @property
    def metrics_dataframe(self) -> Any:  # Any: pandas has no types
        """Rank 0's reports that count, as a `pandas.DataFrame` with a column for each metric, nested ones with ``/``.

        None for a run in memory, which keeps the last report only.
        """
        if self._metrics_dataframe is None and self.path is not None:
            from turnout.storage.history import history_dataframe

            self._metrics_dataframe = history_dataframe(_run_at(self.path, self._storage_filesystem))
        return self._metrics_dataframe

    @property
    def filesystem(self) -> Any:  # Any: pyarrow has no types
        """The `pyarrow.fs.FileSystem` that ``path`` lies on; None for a run in memory."""
        if self.path is None or self._storage_filesystem is not None:
            return self._storage_filesystem
        from turnout.filesystem import local_filesystem

        return local_filesystem()

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:  # Any: as above
        """Read a run back from its folder alone; nothing of the run need be alive, and it may still be running.

        Args:
            path: the run's folder: a local path, a URI, or a path on ``storage_filesystem``.
            storage_filesystem: of pyarrow's or fsspec's.

        Returns:
            The result; its ``return_value`` is None, as return values are not stored.

        Raises:
            StorageError: there is no run, or the storage does not serve.
        """
        from turnout.storage.history import last_metrics
        from turnout.storage.reading import committed
        from turnout.storage.record import checkpoint_of
        from turnout.storage.retention import best_first

        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        check_text("Result.from_path(): path", text, "the path or URI of a run's folder")
        if not text.strip("/"):
            raise refused("Result.from_path(): path", text, "is the root of a filesystem, and no run's folder")
        run = _run_at(text, storage_filesystem)
        info, records = run.info(), committed(run)
        if info is None and not records:
            raise StorageError(f"{run.location} holds no run: neither a run.json nor a committed checkpoint is there")
        spec = {} if info is None else info.spec
        ranked = best_first(
            records, spec.get("checkpoint_score_attribute"), spec.get("checkpoint_score_order") or "max"
        )
        metrics = last_metrics(run)
        if metrics is None and records:
            metrics = dict(records[-1].metrics)
        failed = info is not None and info.error is not None
        return cls(
            metrics=metrics,
            checkpoint=checkpoint_of(run.checkpoints / records[-1].name) if records else None,
            error=TrainingFailedError(info.error) if failed and info is not None else None,
            path=run.location.path,
            best_checkpoints=[
                (checkpoint_of(run.checkpoints / each.name), dict(each.metrics)) for each in ranked[::-1]
            ],
            _storage_filesystem=run.location.filesystem,
        )

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """The kept checkpoint that is best by a metric; one where it is missing or NaN never is.

        Args:
            metric: its name; nested ones as ``"eval/loss"``.
            mode: whether ``"max"`` or ``"min"`` is best.

        Raises:
            UsageError: the mode is neither, or no checkpoint has a number under that name.
            CheckpointNotFoundError: the run keeps no checkpoints.
        """
        check_text("get_best_checkpoint(): metric", metric, "a metric's name")
        check_choice("get_best_checkpoint(): mode", mode, ("max", "min"))
        if not self.best_checkpoints:
            raise CheckpointNotFoundError(
                "get_best_checkpoint(): this result lists no checkpoints; a run keeps them if it has a storage_path "
                "and reports some"
            )
        from turnout.storage.retention import score_of

        scored = [
            (score, each) for each, metrics in self.best_checkpoints if (score := score_of(metrics, metric)) is not None
        ]
        if not scored:
            known = sorted({name for _, metrics in self.best_checkpoints for name in metrics})
            raise UsageError(
                f"get_best_checkpoint(): no checkpoint has a number under {metric!r}; their metrics are {known}"
            )
        choose = max if mode == "max" else min
        return choose(scored, key=lambda pair: pair[0])[1]

    def __repr__(self) -> str:
        names = ("metrics", "checkpoint", "error", "path", "best_checkpoints", "return_value", "return_values")
        shown = [f"{name}={value!r}" for name in names if (value := getattr(self, name)) not in (None, [])]
        return f"Result({', '.join(shown)})"


def _run_at(path: str, filesystem: Any) -> Any:  # Any: a RunFolder, whose room is for runs with storage
    from turnout.storage.location import StorageLocation
    from turnout.storage.run_folder import RunFolder

    return RunFolder.at(StorageLocation.open(path, filesystem))
