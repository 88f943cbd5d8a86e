"""How the ranks of a run join XGBoost's communicator: `XGBoostConfig` says what is wanted, `XGBoostBackend` does it."""

from __future__ import annotations

import contextlib
import io
import logging
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from turnout.backends.base import Backend
from turnout.backends.cores import share_openmp
from turnout.backends.own_port import own_address
from turnout.checks import check_number, check_text, refused
from turnout.config import BackendConfig
from turnout.dependency import imported
from turnout.environment import is_worker
from turnout.errors import ControllerError, UnsupportedError
from turnout.session.collective import Collective
from turnout.session.events import RankInfo

__all__ = ["XGBoostBackend", "XGBoostConfig", "imported_xgboost"]

logger = logging.getLogger(__name__)

_TEARDOWN_S = 5  # for the other ranks to take leave of the tracker


def imported_xgboost(needed_by: str) -> ModuleType:
    """XGBoost, imported now.

    Args:
        needed_by: what needs it, for the error's text.

    Raises:
        MissingDependencyError: it is not installed, or too old.
    """
    # 2.1 is the first whose tracker holds its port from the start and tells each worker what it needs.
    return imported("xgboost", at_least="2.1", extra="xgboost", needed_by=needed_by)


@dataclass(frozen=True, slots=True, repr=False)
class XGBoostConfig(BackendConfig):
    """How the ranks of a run join XGBoost's communicator, by which they grow the same trees.

    Example:
        >>> XGBoostConfig(timeout_s=60)
        XGBoostConfig(timeout_s=60.0)

    Args:
        xgboost_communicator: ``"rabit"``, XGBoost's own.
        timeout_s: seconds that a rank waits for the others in an operation of XGBoost's; it counts whole ones.

    Raises:
        UnsupportedError: another communicator is asked for.
        UsageError: a field cannot be meant.
    """

    backend_class: ClassVar[str | None] = "turnout.backends.xgboost:XGBoostBackend"
    preload: ClassVar[tuple[str, ...]] = ("xgboost",)

    xgboost_communicator: str = "rabit"
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        check_text("XGBoostConfig.xgboost_communicator", self.xgboost_communicator, '"rabit"')
        if self.xgboost_communicator != "rabit":
            raise UnsupportedError(
                f"XGBoostConfig.xgboost_communicator={self.xgboost_communicator!r}: only 'rabit' is supported"
            )
        self._set("timeout_s", check_number("XGBoostConfig.timeout_s", self.timeout_s, above=0, unit="seconds"))


class XGBoostBackend(Backend):
    """Makes one communicator of all ranks, whose numbers there are those of the run.

    Rank 0 starts the tracker, which listens on a port of the system's choice before anybody is told of it, so that no
    other trainer can be met there.

    Args:
        config: the user's configuration.
    """

    config: XGBoostConfig

    def __init__(self, config: BackendConfig) -> None:
        if not isinstance(config, XGBoostConfig):
            raise refused("xgboost_config", config, "takes a turnout.xgboost.XGBoostConfig")
        super().__init__(config)
        self._cleanup = contextlib.ExitStack()
        self._patience_s = 0

    def start(self, ranks: RankInfo, rendezvous: Collective) -> None:
        """Enter the communicator; the ranks train together from here on, on this thread.

        Raises:
            MissingDependencyError: XGBoost is not installed, or too old.
            ControllerError: the ranks could not reach each other.
        """
        xgboost = imported_xgboost("XGBoostTrainer")  # before the ranks wait for each other: each of them says it
        try:
            self._cleanup.callback(share_openmp(ranks, xgboost.core._LIB))
            if ranks.world_size > 1:
                self._join(ranks, rendezvous)
        except BaseException as error:
            self.stop(error if isinstance(error, Exception) else None)
            raise

    def stop(self, error: Exception | None) -> None:
        """Leave the communicator."""
        self._patience_s = _TEARDOWN_S if error is None else 0
        self._cleanup.close()

    def _join(self, ranks: RankInfo, rendezvous: Collective) -> None:
        from xgboost.core import XGBoostError

        arguments = rendezvous.broadcast("XGBoost's tracker", self._tracked(ranks) if ranks.rank == 0 else None)
        try:
            with contextlib.redirect_stdout(io.StringIO()) as said:  # the number of each rank: the run says it as well
                # The tracker numbers the ranks in the order of their ids.
                self._enter({**arguments, "dmlc_task_id": f"{ranks.rank:08d}"})
        except XGBoostError as problem:
            raise ControllerError(
                f"rank {ranks.rank} could not join XGBoost's communicator of {ranks.world_size} ranks at "
                f"{arguments['dmlc_tracker_uri']}:{arguments['dmlc_tracker_port']}: {problem}"
            ) from problem
        logger.debug("joined XGBoost's communicator: %s", said.getvalue().strip())
        # Rank 0 serves the tracker, which goes with it: nobody's train function may return before all have joined.
        rendezvous.barrier("XGBoost's communicator")

    def _tracked(self, ranks: RankInfo) -> dict[str, Any]:  # Any: XGBoost's own arguments
        """Start the tracker; returns what a rank enters the communicator with."""
        from xgboost.core import XGBoostError
        from xgboost.tracker import RabitTracker

        timeout_s = math.ceil(self.config.timeout_s)
        tracker = RabitTracker(ranks.world_size, host_ip=own_address(ranks), sortby="task", timeout=timeout_s)
        tracker.start()

        def end() -> None:
            with contextlib.suppress(XGBoostError):  # some rank has not taken its leave
                if not is_worker():
                    tracker.wait_for(timeout=self._patience_s)
            with contextlib.suppress(XGBoostError):  # as above; its memory is freed all the same
                tracker.free()

        self._cleanup.callback(end)
        return {**tracker.worker_args(), "dmlc_timeout": timeout_s}

    def _enter(self, arguments: dict[str, Any]) -> None:  # Any: XGBoost's own
        from xgboost.collective import CommunicatorContext
        from xgboost.core import XGBoostError

        communicator = CommunicatorContext(**arguments)
        communicator.__enter__()

        def leave() -> None:
            if is_worker():
                return  # the process is about to end, which does the same; where a rank has failed, leaving may wait
            with contextlib.suppress(XGBoostError):  # another rank has failed, which the run says
                communicator.__exit__(None, None, None)

        self._cleanup.callback(leave)
