"""Ray data sets on ranks that are Ray's: cut by the driver, once for every attempt, and iterated through Ray Data.

Ray Data cuts a stream: a coordinator of its own, an actor, runs the data set's tasks anew for every epoch and deals the
blocks to the ranks as they ask. Its tasks run beside the ranks, on what these leave of the cluster. So the ranks'
resources are taken out of what Ray Data reckons with, and a data set whose tasks could never run is refused.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from turnout.checks import check_integer, refused
from turnout.config import DataConfig
from turnout.data.site import Site
from turnout.errors import ResourceError, UsageError

if TYPE_CHECKING:
    import pandas as pd
    import torch

__all__ = ["RayDealer", "RayShard", "is_ray_dataset"]

logger = logging.getLogger(__name__)

_SHUTDOWN_S = 5.0  # for what a coordinator still runs to be called off
_KINDS = {"CPU": "cpu", "GPU": "gpu", "memory": "memory"}  # Ray's name of a resource, and Ray Data's


def is_ray_dataset(dataset: Any) -> bool:  # Any: whatever the user gave
    """Whether it is a `ray.data.Dataset`; told by its class's name, as Ray need not be imported to find out."""
    return any(base.__module__ == "ray.data.dataset" for base in type(dataset).__mro__)


class RayDealer:
    """Has the data sets of one attempt cut, on the driver.

    It stays there: where it is pickled with what a rank runs, None arrives.

    Args:
        datasets: those that are dealt from here, by name; what is no Ray data set is handed on as it is.
        config: how they are dealt.

    Raises:
        UsageError: ``config.execution_options`` are none.
    """

    def __init__(self, datasets: Mapping[str, Any], config: DataConfig) -> None:
        self._datasets = datasets
        self._config = config
        self._coordinators: list[Any] = []  # Any: Ray's handles have no types of ours
        for name, dataset in datasets.items():
            if is_ray_dataset(dataset):
                _execution_options(name, dataset, config)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def deal(self, site: Site) -> list[dict[str, Any]]:  # Any: data of the user's
        """What each rank gets, by name; it travels as an argument of a call of Ray's.

        Raises:
            ResourceError: beside the ranks the cluster has no room for the tasks of a data set.
            UsageError: a data set cannot be sent to where it is read.
        """
        shares: list[dict[str, Any]] = [{} for _ in site.nodes]
        for name, dataset in self._datasets.items():
            if not is_ray_dataset(dataset):
                pieces = [dataset] * len(shares)
            else:
                pieces = [RayShard(name, each) for each in self._pieces(name, dataset, site)]
            for share, piece in zip(shares, pieces, strict=True):
                share[name] = piece
        return shares

    def close(self) -> None:
        """Call off what still runs for the ranks, and end the coordinators."""
        coordinators, self._coordinators = self._coordinators, []
        if not coordinators:
            return
        import ray

        try:
            # One that is killed at once would leave its claim on the cluster with Ray Data, for minutes.
            ended = [each.shutdown_executor.remote() for each in coordinators]
            ray.wait(ended, num_returns=len(ended), timeout=_SHUTDOWN_S)
        finally:
            for each in coordinators:
                with contextlib.suppress(ray.exceptions.RayError):  # it is gone already
                    ray.kill(each)

    def _pieces(self, name: str, dataset: Any, site: Site) -> list[Any]:
        beside = _beside(name, dataset, self._config, site)
        if not _is_cut(name, self._config):
            return [beside] * len(site.nodes)
        hints = list(site.nodes) if self._config.enable_shard_locality else None
        try:
            pieces: list[Any] = beside.streaming_split(len(site.nodes), equal=self._config.equal, locality_hints=hints)
        except TypeError as error:  # what Ray raises for an argument that does not pickle
            raise UsageError(f"datasets[{name!r}] cannot be sent to where it is read: {_line(error)}") from error
        self._coordinators.append(pieces[0]._coord_actor)
        return pieces


class RayShard:
    """One rank's share of a Ray data set, or all of it, with the methods of `ray.data.DataIterator`.

    What is not named here is Ray Data's own. All ranks have to iterate over their shares at the same time, as every
    iteration is an epoch that Ray Data runs for all of them.

    Args:
        name: of the data set, for errors.
        source: a `ray.data.DataIterator`, or a `ray.data.Dataset` that is whole on each rank.
    """

    def __init__(self, name: str, source: Any) -> None:
        self._name = name
        self._source = source
        self._epoch = 0

    def __getattr__(self, attribute: str) -> Any:  # Any: Ray Data's own
        if attribute.startswith("_"):  # also while it is unpickled, and has no source yet
            raise AttributeError(attribute)
        return getattr(self._source, attribute)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iterations' local shuffling another one, though ``local_shuffle_seed`` is the same.

        The order of the blocks is Ray Data's: one with a `random_shuffle` is drawn for each epoch anyway.

        Raises:
            UsageError: it is no whole number of at least 0.
        """
        self._epoch = check_integer(
            "set_epoch(): epoch", epoch, at_least=0, remedy="takes a whole number of at least 0"
        )

    def schema(self) -> Any:
        """The columns, as Ray Data's `Schema`."""
        return self._source.schema()

    def count(self) -> int:
        """How many rows it has, where Ray Data knows.

        Raises:
            UsageError: it is a share of a stream, whose rows nobody has counted.
        """
        if not hasattr(self._source, "count"):
            raise UsageError(
                f"count() of datasets[{self._name!r}]: Ray Data does not know how many rows a share has before they "
                "are read. dataset.count() in the driver program counts all; materialize().count() reads this share"
            )
        return int(self._source.count())

    def materialize(self) -> RayShard:
        """Its rows of one epoch, kept in the cluster's memory: a shard of their own, whole on this rank."""
        return RayShard(self._name, self._source.materialize())

    def to_pandas(self) -> pd.DataFrame:
        """Its rows of one epoch."""
        import pandas as pd

        frames = list(self.iter_batches(batch_size=None, batch_format="pandas"))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """Its rows, as dicts."""
        rows: Iterable[dict[str, Any]] = self._source.iter_rows()
        return rows

    def iter_batches(self, *, local_shuffle_seed: int | None = None, **options: Any) -> Iterable[Any]:
        """Its rows, in batches.

        Args:
            local_shuffle_seed: makes the shuffling repeat itself; it differs from epoch to epoch after `set_epoch`.
            options: as `ray.data.DataIterator.iter_batches` has them.
        """
        batches: Iterable[Any] = self._source.iter_batches(local_shuffle_seed=self._seed(local_shuffle_seed), **options)
        return batches

    def iter_torch_batches(
        self,
        *,
        device: str | torch.device = "auto",
        local_shuffle_seed: int | None = None,
        **options: Any,
    ) -> Iterable[Any]:
        """Its rows, in batches of tensors by column.

        Args:
            device: where tensors go; ``"auto"`` for the current CUDA device if there is one, else the CPU.
            local_shuffle_seed: makes the shuffling repeat itself; it differs from epoch to epoch after `set_epoch`.
            options: as `ray.data.DataIterator.iter_torch_batches` has them.
        """
        from turnout.data.torch import device_of

        batches: Iterable[Any] = self._source.iter_torch_batches(
            device=device_of(device), local_shuffle_seed=self._seed(local_shuffle_seed), **options
        )
        return batches

    def __repr__(self) -> str:
        return f"RayShard({self._name!r}, {self._source!r})"

    def _seed(self, seed: int | None) -> int | None:
        return None if seed is None else seed + self._epoch


def _is_cut(name: str, config: DataConfig) -> bool:
    return config.datasets_to_split == "all" or name in config.datasets_to_split


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


# -- what Ray Data may take of the cluster


def _execution_options(name: str, dataset: Any, config: DataConfig) -> Any:
    """A copy of the options that a data set is run with: the trainer's, else its own."""
    from ray.data import ExecutionOptions

    given = config.execution_options
    if isinstance(given, Mapping):
        given = given.get(name)
    if given is None:
        given = dataset.context.execution_options
    if not isinstance(given, ExecutionOptions):
        raise refused(
            "DataConfig.execution_options", given, "takes a ray.data.ExecutionOptions, or one for each data set"
        )
    return copy.deepcopy(given)


def _beside(name: str, dataset: Any, config: DataConfig, site: Site) -> Any:
    """The same data set, run on what the ranks leave of the cluster.

    Raises:
        ResourceError: that is not enough for it.
    """
    from ray.data import Dataset, ExecutionResources

    options = _execution_options(name, dataset, config)
    excluded = {
        kind: amount * len(site.nodes)
        for resource, kind in _KINDS.items()
        if (amount := site.held.get(resource, 0.0))
        # A limit that the user has set is one for Ray Data alone, and stays.
        and getattr(options.resource_limits, kind, None) in (None, float("inf"))
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray means to replace it
        options.exclude_resources = options.exclude_resources.add(ExecutionResources(**excluded))
    beside = Dataset.copy(dataset, _deep_copy=True)
    beside.context.execution_options = options
    if beside.name is None:
        beside.set_name(name)
    _refuse_without_room(name, beside, site)
    return beside


class _Step(NamedTuple):
    """A step of a data set's plan.

    Args:
        title: as Ray Data names it.
        task: what one task or actor of it takes.
        lasting: what its actors take for as long as it runs.
    """

    title: str
    task: dict[str, float]
    lasting: dict[str, float]


def _refuse_without_room(name: str, dataset: Any, site: Site) -> None:
    if site.spare is None:
        return
    steps = list(_steps(dataset))
    for resource in _KINDS:
        most = max((node.get(resource, 0.0) for node in site.spare), default=0.0)
        total = sum(node.get(resource, 0.0) for node in site.spare)
        lasting = sum(step.lasting.get(resource, 0.0) for step in steps)
        tasks = max((step.task.get(resource, 0.0) for step in steps if not step.lasting), default=0.0)
        large = next((step for step in steps if step.task.get(resource, 0.0) > most + 1e-9), None)
        if large is None and lasting + tasks <= total + 1e-9:
            continue
        needs = (
            f"{large.title} takes {large.task[resource]:g} {resource} at a time"
            if large is not None
            else f"its steps take {lasting + tasks:g} {resource} at least"
        )
        held = site.held.get(resource, 0.0)
        raise ResourceError(
            f"datasets[{name!r}] can never be read beside the workers: {needs}, and {len(site.nodes)} worker(s) with "
            f"{held:g} {resource} each leave {most if large is not None else total:g} "
            f"{'on any node' if large is not None else 'in the cluster'}. Lower ScalingConfig.num_workers or "
            f"resources_per_worker[{resource!r}]{_or_materialize(steps, resource)}"
        )


def _or_materialize(steps: Iterable[_Step], resource: str) -> str:
    return ", or give dataset.materialize(), which is read before the workers start" if resource == "CPU" else ""


def _steps(dataset: Any) -> Iterator[_Step]:
    """The steps that a data set is run in, as far as they take anything."""
    from ray.data._internal.execution.operators.actor_pool_map_operator import ActorPoolMapOperator
    from ray.data._internal.logical.interfaces import LogicalPlan
    from ray.data._internal.logical.optimizers import get_execution_plan

    plan = LogicalPlan(dataset._logical_plan.dag, dataset.context)
    operators = get_execution_plan(plan)[0].dag.post_order_iter()
    for operator in operators:
        is_pool = isinstance(operator, ActorPoolMapOperator)
        task = _amounts(operator.min_scheduling_resources())
        lasting = _amounts(operator.min_max_resource_requirements()[0]) if is_pool else {}
        if task or lasting:
            yield _Step(operator.name, task, lasting)


def _amounts(resources: Any) -> dict[str, float]:
    return {name: amount for name, kind in _KINDS.items() if (amount := getattr(resources, kind, 0.0) or 0.0)}
