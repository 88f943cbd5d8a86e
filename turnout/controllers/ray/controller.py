"""`RayController`: N ranks on a Ray cluster, each an actor, in one placement group for the whole run."""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

from turnout.cluster.connection import connected_node
from turnout.cluster.notices import draining_nodes
from turnout.cluster.placement import Bundles, Placement, actor_options
from turnout.cluster.runtime_env import sent_runtime_env
from turnout.cluster.shortage import num_placeable
from turnout.config import FailureConfig
from turnout.controllers.base import DealingWorker, Ending, Outcome, RunSpec, Sink, Traits, Worker
from turnout.controllers.ray.group import CannotStartError, Group, OtherSizeError, Room
from turnout.controllers.serving import ServingController
from turnout.controllers.work import packed_validation, packed_work
from turnout.data.shards import check_datasets
from turnout.errors import ControllerError, PreemptionError, UsageError

__all__ = ["RayController"]

logger = logging.getLogger(__name__)


class RayController(ServingController):
    """Has Ray place the ranks of an attempt, and carries their messages on the thread that called `fit()`.

    Raises:
        UnsupportedError: the run asks for what is not there yet, or the program is connected through the Ray client.
        UsageError: it asks for workers that take nothing, or for options that Ray does not know.
    """

    name: ClassVar[str] = "ray"
    traits: ClassVar[Traits] = Traits(
        isolates_workers=True,
        forms_group=True,
        restartable=True,
        resizable=True,
        multi_node=True,
        ray_data=True,
        runs_aside=True,
    )

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        _check(spec)
        self._bundles = Bundles.of(spec.scaling_config)
        self._node = connected_node()
        _check_aside_options(spec)
        self._placement: Placement | None = None
        self._is_elastic = isinstance(spec.scaling_config.num_workers, tuple)
        self._has_begun = False

    def run_attempt(self, worker: Worker, sink: Sink) -> Outcome:
        """Have the ranks placed, and serve them until the last has ended.

        Raises:
            UsageError: what they are to run cannot be pickled; the text names the variable at fault.
            ResourceError: the cluster cannot hold them, or has not in the time that the run gave it, or leaves no room
                for reading their data.
            DataError: a data set cannot be cut.
            KeyboardInterrupt: the run was interrupted; no rank is left.
        """
        work = packed_work(worker, self.spec)
        deal = worker.deal if isinstance(worker, DealingWorker) else None
        runtime_env = sent_runtime_env(self.spec.run_config.worker_runtime_env)
        while True:
            room = self._room(runtime_env)
            self._has_begun = True
            has_ended_well = False
            try:
                with Group(self.spec, self._node, sink, room, _preload(self.spec)) as group:
                    self._group = group
                    group.start(work, deal)
                    group.serve()
                has_ended_well = group.has_ended_well
            except OtherSizeError:
                continue
            except ControllerError as error:
                return Outcome(ending=Ending.NOT_STARTED, error=error, is_lasting=isinstance(error, CannotStartError))
            finally:
                self._group = None
                if has_ended_well:  # nothing follows but validations, which may need what the ranks had
                    self.close()
            if group.was_interrupted:
                raise KeyboardInterrupt
            if group.was_preempted:
                return Outcome(ending=Ending.PREEMPTED, error=PreemptionError(group.told_of_preemption))
            return Outcome(ending=Ending.RESIZED if group.was_resized else Ending.ENDED)

    def _room(self, runtime_env: dict[str, Any] | None) -> Room:
        """Where the workers of the next attempt are placed: as before, unless another number of them can be."""
        lost = self._placement.lost if self._placement is not None else set()
        size = self._better_size(lost)
        if self._placement is not None and (self._placement.bundles.num_workers != size or self._is_outdated(lost)):
            self.close()
        if self._placement is None:
            self._placement = Placement(self._bundles.of_size(size), f"turnout-{self.spec.name}", lost)
        placement = self._placement
        return Room(
            size=size,
            options=lambda worker: placement.options(worker, runtime_env),
            bundles=placement.bundles,
            is_placed=lambda: placement.state == "CREATED",
            may_be_refused=not self._has_begun,
            better_size=(lambda: self._better_size(placement.without)) if self._is_elastic else None,
            is_outdated=lambda: self._is_outdated(placement.lost),
            watches_nodes=True,
            look_s=self.spec.scaling_config.elastic_resize_monitor_interval_s,
        )

    def _is_outdated(self, lost: AbstractSet[str]) -> bool:
        """Whether the placement group has bundles on lost nodes, or keeps off those that are there again."""
        placement = self._placement
        return placement is not None and lost != placement.without

    def _better_size(self, lost: AbstractSet[str]) -> int:
        """How many workers there are to be: all, or of an elastic run as many as there is room for."""
        if not self._is_elastic:
            return self._bundles.num_workers
        held = self._placement.nodes if self._placement is not None else []
        without = {*lost, *draining_nodes()}
        return max(self.spec.scaling_config.min_workers, num_placeable(self._bundles, held, without))

    def close(self) -> None:
        """Give back what the run holds of the cluster."""
        placement, self._placement = self._placement, None
        if placement is not None:
            placement.remove()

    def run_aside(self, worker: Worker, sink: Sink, timeout_s: float | None) -> bool:
        """Run one more actor, outside of the placement group, and serve it until it has ended."""
        work = packed_validation(worker, self.spec)
        options = _aside_options(self.spec)
        resources = {"CPU": float(options.get("num_cpus") or 0), "GPU": float(options.get("num_gpus") or 0)}
        bundles = Bundles(num_workers=1, resources={name: amount for name, amount in resources.items() if amount})
        room = Room(size=1, options=lambda worker: options, bundles=bundles, is_placed=lambda: False)
        with Group(self.spec, self._node, sink, room, _preload(self.spec)) as group:
            return self._serve_aside(group, lambda: group.start(work), timeout_s)


def _preload(spec: RunSpec) -> list[str]:
    backend = spec.backend_config
    return list(backend.preload) if backend is not None else []


def _check(spec: RunSpec) -> None:
    if (spec.run_config.failure_config or FailureConfig()).relax_collectives_on_preemption:
        logger.warning(
            "FailureConfig.relax_collectives_on_preemption=True: no effect; a report is a meeting of all ranks, "
            "also of those that are going"
        )
    check_datasets(spec.datasets, spec.dataset_config, world_size=spec.scaling_config.max_workers)


def _aside_options(spec: RunSpec) -> dict[str, Any]:  # Any: Ray's own options
    """The options of the actor that validates; a CPU unless the user says otherwise, as of a Ray task."""
    return actor_options({"CPU": 1.0}, sent_runtime_env(spec.run_config.worker_runtime_env)) | _given_aside(spec)


def _check_aside_options(spec: RunSpec) -> None:
    given = _given_aside(spec)
    if given:
        try:
            Group.actor_class().options(**given)
        except (ValueError, TypeError) as error:
            raise UsageError(f"ValidationConfig.ray_remote_kwargs={given!r}: {error}") from error


def _given_aside(spec: RunSpec) -> dict[str, Any]:  # Any: Ray's own options
    config = spec.validation_config
    return dict(config.ray_remote_kwargs or {}) if config is not None else {}
