"""The tree of errors that Turnout raises; every track raises the same class for the same cause.

::

    TurnoutError
    ├── UsageError (ValueError)                    a call or an argument that cannot be meant
    ├── MissingDependencyError (ImportError)       a package that is missing or too old, with the line that installs it
    ├── UnsupportedError (NotImplementedError)     asked of a controller or storage that cannot do it
    ├── TrainingFailedError                        what `fit()` raises when training did not end well
    │   ├── WorkerGroupError                       a rank raised or died; also an instance of the user's own class
    │   ├── ControllerError                        the group of workers could not be started or driven
    │   └── PreemptionError                        the machines were taken away
    ├── CheckpointError
    │   ├── CheckpointNotFoundError (FileNotFoundError)
    │   ├── CheckpointNotCommittedError            the folder has no valid commit record
    │   └── CheckpointCorruptError                 a file differs from its commit record
    ├── StorageError                               the storage refused, failed or is full
    ├── DataError                                  a data set that cannot be read or cut into shards
    └── ResourceError                              more was asked than the cluster has
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointNotCommittedError",
    "CheckpointNotFoundError",
    "ControllerError",
    "DataError",
    "MissingDependencyError",
    "PreemptionError",
    "ResourceError",
    "StorageError",
    "TrainingFailedError",
    "TurnoutError",
    "UnsupportedError",
    "UsageError",
    "WorkerGroupError",
]


class TurnoutError(Exception):
    """The root of every error that Turnout raises on its own account."""


class UsageError(TurnoutError, ValueError):
    """A call or an argument that cannot be meant; the text says which value, where, and what to do."""


class MissingDependencyError(TurnoutError, ImportError):
    """A package that this call needs is not installed, or too old; the text ends in the line that installs it.

    Args:
        package: its name.
        install: the line that installs it.
        needed_by: what needs it, for the text.
        at_least: the version that is needed, where an older one is installed.
        installed: the version that is.
    """

    def __init__(
        self, package: str, install: str, needed_by: str = "this call", at_least: str = "", installed: str = ""
    ) -> None:
        super().__init__(package, install, needed_by, at_least, installed)
        self.name = package

    def __str__(self) -> str:
        package, install, needed_by, at_least, installed = self.args
        if at_least:
            what = f"{package} {at_least} or newer, and {installed} is installed"
        else:
            what = f"the package {package!r}, which is not installed"
        return f"{needed_by} needs {what}. Install it with: {install}"


class UnsupportedError(TurnoutError, NotImplementedError):
    """Asked of a controller or a storage that cannot do it; the text names those that can."""


class TrainingFailedError(TurnoutError):
    """Training did not end well. The base of what `fit()` raises."""


class WorkerGroupError(TrainingFailedError):
    """A rank raised or died, and no retry is left.

    What `fit()` raises for an exception of the train function is an instance both of this class and of the
    exception's own class (see `turnout.combined_error`), so that `except MyError` works on every track.

    Args:
        error_message: what happened, first cause first.
        worker_failures: the exception of each rank that failed, by world rank.
    """

    def __init__(self, error_message: str, worker_failures: dict[int, BaseException] | None = None) -> None:
        super().__init__(error_message)
        self.error_message = error_message
        self.worker_failures: dict[int, BaseException] = dict(worker_failures or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.error_message, self.worker_failures)

    def __str__(self) -> str:
        return self.error_message


class ControllerError(TrainingFailedError):
    """The group of workers could not be started or driven; nothing that the train function did is the cause."""


class PreemptionError(TrainingFailedError):
    """Machines of the run were taken away by their owner, and no retry is left."""


class CheckpointError(TurnoutError):
    """The base of errors about one checkpoint."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """No folder or file stands where a checkpoint was expected."""


class CheckpointNotCommittedError(CheckpointError):
    """The folder holds no valid commit record: it was never finished, and is not a checkpoint."""


class CheckpointCorruptError(CheckpointError):
    """A file of a committed checkpoint is missing, or differs from its record in size or checksum."""


class StorageError(TurnoutError):
    """The storage refused, failed or is full; the text names the path and what would help."""


class DataError(TurnoutError):
    """A data set cannot be read, or cannot be cut into shards as asked."""


class ResourceError(TurnoutError):
    """More was asked than the cluster has or can get; the text says what was asked and what there is."""
