"""`TrainWorker`: what one rank runs, on every track, between its controller's call and the user's first line."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

from turnout.backends.base import backend_for
from turnout.controllers.base import RunSpec
from turnout.data import shards_for
from turnout.runtime.traceback import place_of
from turnout.session import Channel, LocalTrainFnUtils, TrainFnUtils, WorkerTrainFnUtils, activated
from turnout.session.checkpoints import Checkpoints
from turnout.session.collective import ChannelCollective, Collective, SoloCollective
from turnout.session.events import Failed, Finished, Started, WorkerInfo
from turnout.session.outbox import Outbox

__all__ = ["TrainWorker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainWorker:
    """Called by a controller with a rank's channel; every exception of the train function leaves as an event.

    Args:
        spec: the run.
        forms_group: whether the ranks form a group, so that they meet and the framework's backend is started.
        checkpoints: makes the part of the session that keeps checkpoints.
    """

    spec: RunSpec
    forms_group: bool
    checkpoints: Callable[[Collective, Outbox], Checkpoints]

    def __call__(self, channel: Channel) -> None:
        """Run the train function in a session of its own, and say how it ended."""
        rank = channel.ranks.rank
        channel.publish(Started(rank, WorkerInfo(channel.ranks, platform.node(), os.getpid())))
        try:
            value = self._train(channel)
        except Exception as error:
            channel.publish(Failed(rank, error, place_of(error)))
        else:
            channel.publish(Finished(rank, value))

    def _train(self, channel: Channel) -> object:
        composition = WorkerTrainFnUtils if self.forms_group else LocalTrainFnUtils
        outbox = Outbox(channel)
        collective = ChannelCollective(channel) if self.forms_group else SoloCollective()
        utils = composition(
            run_name=self.spec.name,
            outbox=outbox,
            checkpoints=self.checkpoints(collective, outbox),
            shards=shards_for(self.spec.datasets),
        )
        with activated(utils):
            try:
                value = self._train_on_backend(utils, channel) if self.forms_group else self.spec.train_fn()
            except BaseException as failure:
                utils.finish(failure)
                raise
            utils.finish(None)
            return value

    def _train_on_backend(self, utils: TrainFnUtils, channel: Channel) -> object:
        backend = backend_for(self.spec.backend_config)
        if backend is None:
            return self.spec.train_fn()
        failure: Exception | None = None
        backend.start(channel.ranks, utils.collective)
        try:
            return self.spec.train_fn()
        except Exception as error:
            failure = error
            raise
        finally:
            backend.stop(failure)
