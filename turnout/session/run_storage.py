"""`RunStorage`: what a train function may do with its run's storage, `get_context().get_storage()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.storage.run_folder import RunFolder

__all__ = ["RunStorage"]


class RunStorage:
    """A handle to the folder of the run that is training.

    Args:
        run: the folder.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    @property
    def path(self) -> str:
        """The run's folder, on its filesystem."""
        return self._run.location.path

    @property
    def filesystem(self) -> Any:  # Any: pyarrow has no types
        """The `pyarrow.fs.FileSystem` that it lies on."""
        if not self._run.location.is_local:
            return self._run.location.filesystem
        from turnout.filesystem import local_filesystem

        return local_filesystem()

    def checkpoint_path(self, name: str) -> str:
        """A folder for a checkpoint that the train function writes in place, made if it is not there.

        Report it with ``Checkpoint(path, filesystem)`` and ``CheckpointUploadMode.NO_UPLOAD``; until then it is no
        checkpoint, and the run's next attempt removes it.

        Args:
            name: the checkpoint's name, the same on every rank.

        Returns:
            The folder's path on `filesystem`.

        Raises:
            UsageError: the name is none of a folder.
        """
        folder = self._run.checkpoint_path(name)
        folder.make_folder()
        return folder.path

    def __repr__(self) -> str:
        return f"RunStorage({str(self._run.location)!r})"
