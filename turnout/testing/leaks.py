"""Finds what a test leaves behind: threads, processes, variables, open files, a session, a process group, handlers."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from turnout.session import activation as session

__all__ = ["Belongings", "LeakError", "police"]

# Helpers of the standard library's, and the warm server, that live as long as the process, by design.
_LASTING_PROCESSES = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "turnout.controllers.process.server",
)
_LASTING_THREADS = ("tqdm_monitor",)  # watches all progress bars of the process from the first one on
# What Ray keeps for a cluster that this process has started: files, daemons, and processes that wait for work. One that
# has work is named for it, "ray::" and the class of the actor or the task.
_FILES_OF_RAY = "/ray/session_"
_VARIABLES_OF_RAY = "RAY_"
_PROCESSES_OF_RAY = ("ray::IDLE", "ray/_private/workers/default_worker.py", "ray/core/src/ray/", "ray/_private/log_")
_ACTORS_OF_RAY_DATA = ("ray::_AutoscalingCoordinatorActor", "ray::_StatsActor")  # one of each serves a whole cluster
# Set by TensorFlow, Keras, JAX, scikit-learn and what they import, when they are imported.
_VARIABLES_OF_FRAMEWORKS = (
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "HDF5_PLUGIN_PATH",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TF2_BEHAVIOR",
    "TF_CPP_MIN_LOG_LEVEL",
    "TPU_ML_PLATFORM",
    "TPU_ML_PLATFORM_VERSION",
    "TPU_SKIP_MDS_QUERY",
)
# Set by pytest while it runs, by torch on the first optimizer step, by Ray when it joins a cluster, by Lightning when
# it first counts GPUs.
_LASTING_VARIABLES = (
    "PYTEST_CURRENT_TEST",
    "COLUMNS",
    "LINES",
    "TORCHINDUCTOR_CACHE_DIR",
    "PYTHONBREAKPOINT",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
)


class LeakError(AssertionError):
    """A test left something behind; the text lists it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What this process has at one moment; every entry is text that a report can show."""

    threads: frozenset[str]
    processes: frozenset[str]
    environment: frozenset[str]
    open_files: frozenset[str]
    process_group: frozenset[str]
    sessions: frozenset[str]
    handlers: frozenset[str]
    working_directory: frozenset[str]

    @classmethod
    def now(cls) -> Belongings:
        """Take stock of this process."""
        import psutil

        process = psutil.Process()
        return cls(
            threads=frozenset(
                f"{thread.name} ({thread.ident})"
                for thread in threading.enumerate()
                if thread.name not in _LASTING_THREADS
            ),
            processes=frozenset(_children(process)),
            environment=frozenset(f"{k}={v}" for k, v in os.environ.items() if not _is_lasting(k)),
            open_files=frozenset(
                f"{file.path} (fd {file.fd})" for file in process.open_files() if _FILES_OF_RAY not in file.path
            ),
            process_group=frozenset(["torch.distributed"] if _has_process_group() else []),
            sessions=frozenset(repr(utils) for utils in session.of_process()),
            handlers=frozenset([f"SIGINT: {signal.getsignal(signal.SIGINT)!r}", *_log_handlers()]),
            working_directory=frozenset([os.getcwd()]),
        )

    def changes_since(self, before: Belongings) -> list[str]:
        """What came or went, one line each; threads, processes and files that went are no leak."""
        lines = []
        for item in fields(self):
            old, new = getattr(before, item.name), getattr(self, item.name)
            lines += [f"{item.name}: left {entry}" for entry in sorted(new - old)]
            if item.name in ("environment", "handlers", "working_directory"):
                lines += [f"{item.name}: lost {entry}" for entry in sorted(old - new)]
        return lines


@contextlib.contextmanager
def police() -> Iterator[None]:
    """Watch a block of code.

    Raises:
        LeakError: it left something behind.
    """
    before = Belongings.now()
    yield
    changes = Belongings.now().changes_since(before)
    if changes:
        gc.collect()  # what only a reference cycle still holds is no leak of the test's
        changes = Belongings.now().changes_since(before)
    if changes:
        raise LeakError("the test left something behind:\n  " + "\n  ".join(changes))


def _is_lasting(variable: str) -> bool:
    return variable in (*_LASTING_VARIABLES, *_VARIABLES_OF_FRAMEWORKS) or variable.startswith(_VARIABLES_OF_RAY)


def _children(process: Any) -> Iterator[str]:  # Any: psutil has no types
    import psutil

    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            is_own = child.ppid() == process.pid  # what a server has forked has its command too, and is to end
            if not command and not is_own:
                continue  # its memory is gone: it is at its end, and another process is about to notice
            if not (
                (is_own and any(name in command for name in _LASTING_PROCESSES))
                or any(name in command for name in (*_PROCESSES_OF_RAY, *_ACTORS_OF_RAY_DATA))
            ):
                yield f"{child.pid} {command or child.name()}"


def _has_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _log_handlers() -> Iterator[str]:
    for name in ("", "turnout"):
        logger = logging.getLogger(name)
        yield f"logger {name!r}: level {logger.level}"
        for handler in logger.handlers:
            if type(handler).__module__ != "_pytest.logging":
                yield f"logger {name!r}: handler {handler!r}"
