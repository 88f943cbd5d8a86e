"""`TrainWorker`: what one rank runs, on every track, between its controller's call and the user's first line."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from turnout.backends.base import Backend, backend_for
from turnout.config import BackendConfig, DataConfig
from turnout.controllers.base import RunSpec, Traits
from turnout.data import shards_for
from turnout.errors import WorkerGroupError
from turnout.runtime.traceback import place_of, users_traceback
from turnout.session import Channel, LocalTrainFnUtils, WorkerTrainFnUtils, activated
from turnout.session.checkpoints import Checkpoints
from turnout.session.collective import ChannelCollective, Collective, SoloCollective
from turnout.session.events import Failed, Finished, Started, WorkerInfo
from turnout.session.outbox import Outbox

__all__ = ["TrainWorker"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainWorker:
    """Called by a controller with a rank's channel; whatever the train function ends with leaves as an event.

    It holds of the run what a rank needs and no more, since it is pickled where ranks are other processes.

    Args:
        run_name: the run's name.
        train_fn: the train function, with its configuration bound.
        backend_config: the framework's process group, if any.
        datasets: what `get_dataset_shard` gives, by name.
        dataset_config: how they are dealt.
        forms_group: whether the ranks form a group, so that they meet and the framework's backend is started.
        is_placed: whether the ranks are processes that the controller placed, and not those of the driver program.
        checkpoints: makes the part of the session that keeps checkpoints.
    """

    run_name: str
    train_fn: Callable[[], Any]  # Any: the user's own return value
    backend_config: BackendConfig | None
    datasets: Mapping[str, Any]  # Any: data of the user's
    dataset_config: DataConfig
    forms_group: bool
    is_placed: bool
    checkpoints: Callable[[Collective, Outbox], Checkpoints]

    @classmethod
    def of(cls, spec: RunSpec, traits: Traits, checkpoints: Callable[[Collective, Outbox], Checkpoints]) -> Self:
        """The worker of a run under a controller with these traits."""
        return cls(
            run_name=spec.name,
            train_fn=spec.train_fn,
            backend_config=spec.backend_config,
            datasets=spec.datasets,
            dataset_config=spec.dataset_config,
            forms_group=traits.forms_group,
            is_placed=traits.forms_group and not traits.runs_driver_per_rank,
            checkpoints=checkpoints,
        )

    def __call__(self, channel: Channel) -> None:
        """Run the train function in a session of its own, and say how it ended.

        Raises:
            KeyboardInterrupt, SystemExit: the train function did.
        """
        rank = channel.ranks.rank
        channel.publish(Started(rank, WorkerInfo(channel.ranks, platform.node(), os.getpid())))
        backend = backend_for(self.backend_config) if self.forms_group else None
        failure: Exception | None = None
        try:
            value = self._train(channel, backend)
        except Exception as error:
            failure = error.with_traceback(users_traceback(error))
            # Said before the framework's group is torn down: what that does to the other ranks is a consequence.
            channel.publish(Failed(rank, error, place_of(error)))
        except (SystemExit, KeyboardInterrupt) as leave:
            if self.forms_group:
                self._tell_of_leaving(channel, leave)
            raise
        else:
            channel.publish(Finished(rank, value))
        finally:
            _stop(backend, failure)

    def _train(self, channel: Channel, backend: Backend | None) -> object:
        composition = WorkerTrainFnUtils if self.is_placed else LocalTrainFnUtils
        outbox = Outbox(channel)
        collective = ChannelCollective(channel) if self.forms_group else SoloCollective()
        utils = composition(
            run_name=self.run_name,
            outbox=outbox,
            collective=collective,
            checkpoints=self.checkpoints(collective, outbox),
            shards=shards_for(
                self.datasets, self.dataset_config, rank=collective.rank, world_size=collective.world_size
            ),
        )
        with activated(utils):
            try:
                if backend is not None:
                    backend.start(channel.ranks, collective)
                value = self.train_fn()
            except BaseException as failure:
                utils.finish(failure)
                raise
            utils.finish(None)
            return value

    @staticmethod
    def _tell_of_leaving(channel: Channel, leave: SystemExit | KeyboardInterrupt) -> None:
        rank = channel.ranks.rank
        if isinstance(leave, SystemExit) and leave.code in (0, None):
            channel.publish(Finished(rank, None))
        else:
            what = f"sys.exit({leave.code!r})" if isinstance(leave, SystemExit) else "KeyboardInterrupt"
            channel.publish(Failed(rank, WorkerGroupError(f"the train function ended in {what}"), place_of(leave)))


def _stop(backend: Backend | None, failure: Exception | None) -> None:
    if backend is None:
        return
    try:
        backend.stop(failure)
    except Exception:  # how the train function ended is told already, and comes first
        logger.warning("the framework's process group could not be torn down in order", exc_info=True)
