"""From the trainer's ``datasets`` to what `get_dataset_shard` gives on one rank, and which can be dealt to several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turnout.config import DataConfig
from turnout.data.arrow import ArrowShard
from turnout.data.arrow_source import is_arrow
from turnout.data.ray_data import RayShard, is_ray_dataset
from turnout.errors import DataError, UnsupportedError, UsageError

__all__ = ["check_datasets", "made_on_driver", "shards_for"]


def check_datasets(
    datasets: Mapping[str, Any],  # Any: data of the user's
    config: DataConfig,
    *,
    world_size: int,
    ray_error: type[UsageError | UnsupportedError] | None = None,
) -> None:
    """Refuse, before a rank is started, what cannot be dealt; what a callable makes is known on the ranks only.

    Args:
        datasets: as the trainer got them.
        config: how they are dealt.
        world_size: to how many ranks.
        ray_error: what a Ray data set is refused with; None where it is welcome.

    Raises:
        UsageError: a data set that is to be cut is none of the trainer's, or there are options for Ray Data alone.
        DataError: one cannot be cut into so many shards.
        UsageError, UnsupportedError: as ``ray_error`` says.
    """
    names = config.datasets_to_split
    unknown = [name for name in names if name not in datasets] if isinstance(names, list) else []
    if unknown:
        known = ", ".join(repr(name) for name in datasets) or "none"
        raise UsageError(f"DataConfig.datasets_to_split names {unknown[0]!r}; the trainer's datasets are {known}")
    _refuse_options_of_ray(datasets, config)
    for name, dataset in datasets.items():
        if ray_error is not None and _is_from("ray", dataset):
            raise ray_error(_refusal_of_ray(name))
        if not callable(dataset):
            _refuse_uncut(name, dataset, config, world_size)


def made_on_driver(
    datasets: Mapping[str, Any],  # Any: data of the user's
    config: DataConfig,
    *,
    world_size: int,
) -> dict[str, Any]:
    """The data sets that the driver deals to Ray's ranks: Ray's own, and what a callable makes that is to be cut.

    Whether that is one of Ray's is known when it is called, and it is called once.

    Raises:
        DataError: a callable raised, or made what cannot be cut.
    """
    made = {}
    for name, given in datasets.items():
        if is_ray_dataset(given):
            made[name] = given
        elif callable(given) and world_size > 1 and _is_cut(name, config):
            made[name] = _made(name, given)
            _refuse_uncut(name, made[name], config, world_size)
    return made


def shards_for(
    datasets: Mapping[str, Any],  # Any: data of the user's
    config: DataConfig | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    is_on_ray: bool = False,
) -> dict[str, Any]:
    """What one rank gets of every data set: of Arrow data an `ArrowShard`, of all else the thing itself.

    A callable is called on each rank, and before every attempt, so that a retry does not find an iterator that is used
    up.

    Args:
        datasets: as the trainer got them.
        config: how they are dealt.
        rank: whose shards they are.
        world_size: to how many ranks.
        is_on_ray: whether the ranks are Ray's, which get a `RayShard` of a Ray data set that is whole on each.

    Raises:
        DataError: a callable raised, or made what cannot be cut into so many shards, or there is nothing to read; the
            text names the data set.
        UsageError: it made a Ray data set, for several ranks that are not Ray's; or there are options for Ray Data
            alone.
    """
    config = config or DataConfig()
    if not is_on_ray:
        _refuse_options_of_ray(datasets, config)
    shards = {}
    for name, given in datasets.items():
        dataset = _made(name, given) if callable(given) else given
        if is_ray_dataset(dataset) and is_on_ray:
            dataset = RayShard(name, dataset)
        elif world_size > 1 and not is_on_ray and _is_from("ray", dataset):
            raise UsageError(_refusal_of_ray(name))
        if not isinstance(dataset, RayShard):
            _refuse_uncut(name, dataset, config, world_size)
        if is_arrow(dataset):
            place = (rank, world_size) if _is_cut(name, config) else (0, 1)
            dataset = ArrowShard(name, dataset, rank=place[0], world_size=place[1], equal=config.equal)
        shards[name] = dataset
    return shards


def _made(name: str, make: Callable[[], Any]) -> Any:  # Any: data of the user's
    try:
        return make()
    except Exception as error:
        text = f"datasets[{name!r}]: the function that makes it raised {type(error).__name__}: {error}"
        raise DataError(text) from error


def _refusal_of_ray(name: str) -> str:
    return (
        f"datasets[{name!r}] is a Ray data set, which Ray alone can deal to the workers of a run: use "
        "ScalingConfig(controller='ray'), or give a function that reads the data on each rank and leave it out of "
        "DataConfig.datasets_to_split"
    )


def _refuse_options_of_ray(datasets: Mapping[str, Any], config: DataConfig) -> None:  # Any: as above
    """Refuse Ray Data's options where it is known that no data set is Ray's: they would have no effect."""
    if config.execution_options is None or not datasets:
        return
    if not any(callable(dataset) or _is_from("ray", dataset) for dataset in datasets.values()):
        raise UsageError(
            f"DataConfig.execution_options={config.execution_options!r}: they are Ray Data's, and have no effect on "
            f"{', '.join(f'datasets[{name!r}]' for name in datasets)}; leave them out, or give a Ray data set. How far "
            "Arrow data is read ahead is prefetch_batches of iter_batches()"
        )


def _refuse_uncut(name: str, dataset: Any, config: DataConfig, world_size: int) -> None:
    if world_size == 1 or not _is_cut(name, config) or is_ray_dataset(dataset) or is_arrow(dataset):
        return
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}".removeprefix("builtins.")
    raise DataError(
        f"datasets[{name!r}], a {kind}: this cannot be cut into shards, one for each of {world_size} ranks; an Arrow "
        "table or data set and the path of Parquet can. Leave it out of DataConfig.datasets_to_split to have it whole "
        "on each rank; turnout.torch.prepare_data_loader then gives each rank its share of a torch data set"
    )


def _is_cut(name: str, config: DataConfig) -> bool:
    return config.datasets_to_split == "all" or name in config.datasets_to_split


def _is_from(package: str, dataset: Any) -> bool:  # by name, as the package need not be imported to find out
    return any(base.__module__.partition(".")[0] == package for base in type(dataset).__mro__)
