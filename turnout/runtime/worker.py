"""`TrainWorker`: what one rank runs, on every track, between its controller's call and the user's first line."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from turnout.backends.base import Backend, backend_for
from turnout.config import BackendConfig, DataConfig
from turnout.controllers.base import RunSpec, Traits
from turnout.errors import WorkerGroupError
from turnout.runtime.singletons import accelerate_is_set_up, forget_accelerate
from turnout.runtime.traceback import place_of, users_traceback
from turnout.session import Channel, LocalTrainFnUtils, WorkerTrainFnUtils, activated
from turnout.session.checkpoints import Checkpoints
from turnout.session.collective import ChannelCollective, Collective, SoloCollective
from turnout.session.events import Failed, Finished, Started, WorkerInfo
from turnout.session.outbox import Outbox

if TYPE_CHECKING:
    from turnout.data.ray_data import RayDealer
    from turnout.data.site import Site

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
        datasets: what `get_dataset_shard` gives, by name, but for what the driver deals.
        dataset_config: how they are dealt.
        forms_group: whether the ranks form a group, so that they meet and the framework's backend is started.
        is_placed: whether the ranks are processes that the controller placed, and not those of the driver program.
        checkpoints: makes the part of the session that keeps checkpoints.
        dealer: has the other data sets cut, on the driver; None if there are none.
        is_on_ray: whether the ranks are Ray's, and can use Ray Data.
    """

    run_name: str
    train_fn: Callable[[], Any]  # Any: the user's own return value
    backend_config: BackendConfig | None
    datasets: Mapping[str, Any]  # Any: data of the user's
    dataset_config: DataConfig
    forms_group: bool
    is_placed: bool
    checkpoints: Callable[[Collective, Outbox], Checkpoints]
    dealer: RayDealer | None = None
    is_on_ray: bool = False

    @classmethod
    def of(cls, spec: RunSpec, traits: Traits, checkpoints: Callable[[Collective, Outbox], Checkpoints]) -> Self:
        """The worker of one attempt of a run under a controller with these traits.

        Raises:
            DataError: a callable that makes a data set for the driver to deal raised, or made what cannot be cut.
            UsageError: the options of Ray Data are none.
        """
        is_on_ray = traits.ray_data and traits.forms_group
        dealt, dealer = {}, None
        if is_on_ray and spec.datasets:
            from turnout.data.ray_data import RayDealer
            from turnout.data.shards import made_on_driver

            dealt = made_on_driver(spec.datasets, spec.dataset_config, world_size=spec.scaling_config.max_workers)
            dealer = RayDealer(dealt, spec.dataset_config) if dealt else None
        return cls(
            run_name=spec.name,
            train_fn=spec.train_fn,
            backend_config=spec.backend_config,
            datasets={name: each for name, each in spec.datasets.items() if name not in dealt},
            dataset_config=spec.dataset_config,
            forms_group=traits.forms_group,
            is_placed=traits.forms_group and not traits.runs_driver_per_rank,
            checkpoints=checkpoints,
            dealer=dealer,
            is_on_ray=is_on_ray,
        )

    def deal(self, site: Site) -> Sequence[Mapping[str, Any]]:  # Any: data of the user's
        """The data sets that each rank is called with, by name; on the driver."""
        return [{} for _ in site.nodes] if self.dealer is None else self.dealer.deal(site)

    def close(self) -> None:
        """The attempt is over; on the driver."""
        if self.dealer is not None:
            self.dealer.close()

    def __call__(self, channel: Channel, share: Mapping[str, Any] | None = None) -> None:  # Any: as above
        """Run the train function in a session of its own, and say how it ended.

        Args:
            channel: the rank's.
            share: what `deal` has made for it.

        Raises:
            KeyboardInterrupt, SystemExit: the train function did.
        """
        rank = channel.ranks.rank
        channel.publish(Started(rank, WorkerInfo(channel.ranks, platform.node(), os.getpid())))
        backend = backend_for(self.backend_config) if self.forms_group else None
        failure: Exception | None = None
        try:
            value = self._train(channel, backend, {**self.datasets, **(share or {})})
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

    def _train(self, channel: Channel, backend: Backend | None, datasets: Mapping[str, Any]) -> object:
        composition = WorkerTrainFnUtils if self.is_placed else LocalTrainFnUtils
        outbox = Outbox(channel)
        collective = ChannelCollective(channel) if self.forms_group else SoloCollective()
        utils = composition(
            run_name=self.run_name,
            outbox=outbox,
            collective=collective,
            checkpoints=self.checkpoints(collective, outbox),
            shards=self._shards(datasets, collective),
        )
        with activated(utils):
            if not accelerate_is_set_up():
                utils.at_end(forget_accelerate)
            try:
                if backend is not None:
                    backend.start(channel.ranks, collective)
                value = self.train_fn()
            except BaseException as failure:
                utils.finish(failure)
                raise
            utils.finish(None)
            if backend is not None:
                backend.finish(collective)
            return value

    def _shards(self, datasets: Mapping[str, Any], collective: Collective) -> dict[str, Any]:
        if not datasets:
            return {}
        from turnout.data.shards import shards_for  # here, as a rank that has no data starts sooner without

        return shards_for(
            datasets,
            self.dataset_config,
            rank=collective.rank,
            world_size=collective.world_size,
            is_on_ray=self.is_on_ray,
        )

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
