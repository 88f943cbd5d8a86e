"""What a train function calls to put a torch model and its data on the right device, whatever the track."""

from __future__ import annotations

import logging
import os
import random
from typing import TYPE_CHECKING, Any, cast

from turnout.checks import check_integer, refused
from turnout.errors import UsageError
from turnout.integrations.torch_data import PreparedDataLoader, unprepared
from turnout.integrations.torch_parallel import check_parallel_strategy, parallel
from turnout.integrations.torch_sampling import dealt
from turnout.session import active, get_context

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

__all__ = ["enable_reproducibility", "get_device", "get_devices", "prepare_data_loader", "prepare_model"]

logger = logging.getLogger(__name__)

_LARGEST_SEED = 2**32 - 1  # numpy's; torch takes more


def get_device() -> torch.device:
    """The device that this worker trains on: the current CUDA device if there is one, else the CPU.

    Works outside a run too.
    """
    return get_devices()[0]


def get_devices() -> list[torch.device]:
    """The devices that this worker trains on, the first of them the one that `get_device` returns.

    Works outside a run too.
    """
    import torch

    if torch.cuda.is_available():
        return [torch.device("cuda", torch.cuda.current_device())]
    return [torch.device("cpu")]


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: dict[str, Any] | None = None,  # Any: arguments of torch's own wrappers
) -> torch.nn.Module:
    """Put a model on this worker's device, and, where there are several workers, let them train it together.

    At world size 1 there is nobody to train with: the result is ``model`` itself, so that its ``state_dict`` has no
    wrapper's prefix. Over several workers every one of them calls this alike:

    - ``"ddp"`` wraps the model in `torch.nn.parallel.DistributedDataParallel`, by which all start from rank 0's
      parameters and each ``backward()`` averages the gradients. The bare model is ``result.module``. A model in which
      nothing is trained needs no averaging, and is returned bare.
    - ``"fsdp"`` wraps it in `torch.distributed.fsdp.FullyShardedDataParallel`, which shards it over the workers. Build
      the optimizer afterwards.
    - ``"fsdp2"`` calls `torch.distributed.fsdp.fully_shard` on it, which shards it in place, as one unit; its
      ``state_dict`` holds DTensors. To shard layer by layer, call ``fully_shard`` yourself and pass None here.

    All three work on CPU over gloo as on CUDA over nccl.

    Args:
        model: any module.
        move_to_device: True moves it to `get_device()`; a device moves it there, and makes a CUDA device the current
            one, so that data follows; False leaves it where it is.
        parallel_strategy: ``"ddp"``, ``"fsdp"``, ``"fsdp2"``, or None to leave the model bare. Checked at every world
            size, so that a misspelling shows on one process and not first on a cluster.
        parallel_strategy_kwargs: arguments for what wraps the model; they win over what is chosen here. Their names
            are checked at every world size as well.

    Returns:
        The model to train.

    Raises:
        UsageError: outside a run, or an argument cannot be meant, or several workers have no process group.

    Example:
        >>> def train_fn():
        ...     model = prepare_model(torch.nn.Linear(4, 2))
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    import torch

    world_size = get_context().get_world_size()
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"prepare_model(): model is a {type(model).__qualname__}, and takes a torch.nn.Module")
    if not isinstance(move_to_device, (bool, torch.device)):
        raise refused("prepare_model(): move_to_device", move_to_device, "takes True, False or a torch.device")
    check_parallel_strategy(parallel_strategy, parallel_strategy_kwargs)

    # `is` tells: a torch.device is true, and so is every bool but one.
    if move_to_device is not False:
        device = get_device() if move_to_device is True else move_to_device
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)
        logger.debug("moving the model to %s", device)
        model = model.to(device)
    if world_size == 1 or parallel_strategy is None:
        return model
    return parallel(model, parallel_strategy, parallel_strategy_kwargs or {})


def prepare_data_loader(
    data_loader: DataLoader[Any],  # Any: batches are the user's own
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[Any]:
    """Let a loader give each worker its share of the data, on the worker's device.

    At world size 1 the loader itself is used, and over several workers a copy of it with another sampler: its workers,
    its collate function and its class stay what they are, and every attribute can be read and set on the result.
    ``result.sampler.set_epoch(epoch)`` can be called on every track; where neither the sampler nor the batch sampler
    has a ``set_epoch``, as torch's own samplers of one process have not, it does nothing.

    How the data is dealt to several workers:

    - ``batch_size`` is each worker's, so that one step sees ``batch_size * world_size`` rows.
    - Shuffled data stays shuffled and other data in order, by a `torch.utils.data.DistributedSampler`. As ever with
      that, the order is another one each epoch only if ``result.sampler.set_epoch(epoch)`` is called.
    - The generator of the sampler, which is the ``DataLoader``'s unless the sampler was given one, decides the order:
      the workers meet here and take rank 0's. Without one the order is that of seed 0, and they do not meet.
    - Every worker gets equally many rows. The first rows are repeated for that, or with ``drop_last=True`` the last
      left out: fewer than there are workers.
    - `SubsetRandomSampler`, `WeightedRandomSampler` and a `RandomSampler` with ``replacement`` or ``num_samples`` are
      dealt as well: what they draw in an epoch is shared out. Their indices or weights must be the same on every
      worker, as the data set must.
    - A sampler, or batch sampler, that has ``num_replicas`` deals already: the loader is used as it is.
    - Any other sampler or batch sampler, and an `IterableDataset`, is refused: only its author knows whether it would
      give the same on every worker. Let it deal itself, and pass ``add_dist_sampler=False``.

    Tensors are moved out of mappings, lists, tuples and dataclasses, nested as they may be, which keep their types. A
    container with a ``to`` of its own, such as a packed sequence or a tokenizer's batch, moves itself. All else is left
    as it is, and so is a batch of None.

    Args:
        data_loader: a `torch.utils.data.DataLoader` or an instance of a subclass.
        add_dist_sampler: give each of several workers its own share. False lets each read all that the loader gives.
            At world size 1 the share is the whole.
        move_to_device: move the batches to `get_device()`, as it is at the time of this call.
        auto_transfer: on CUDA, copy the next batch while the current one is in use. It costs device memory for one
            batch more, and copies beside the computation only from pinned memory: ``DataLoader(pin_memory=True)``.

    Returns:
        What is used as the loader was.

    Raises:
        UsageError: outside a run, or an argument cannot be meant, or the loader cannot be dealt to several workers.

    Example:
        >>> def train_fn():
        ...     loader = prepare_data_loader(DataLoader(dataset, batch_size=32, shuffle=True))
        ...     for epoch in range(10):
        ...         loader.sampler.set_epoch(epoch)
        ...         for batch in loader:
        ...             ...
    """
    from torch.utils.data import DataLoader

    context = get_context()
    if not isinstance(data_loader, DataLoader):
        raise UsageError(
            f"prepare_data_loader(): data_loader is a {type(data_loader).__qualname__}, and takes a "
            "torch.utils.data.DataLoader; use what gives batches in another way as it is, and move them to get_device()"
        )
    flags = {"add_dist_sampler": add_dist_sampler, "move_to_device": move_to_device, "auto_transfer": auto_transfer}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise refused(f"prepare_data_loader(): {name}", value, "takes True or False")

    if add_dist_sampler and context.get_world_size() > 1:
        data_loader = dealt(
            unprepared(data_loader),
            num_replicas=context.get_world_size(),
            rank=context.get_world_rank(),
            agreed=lambda seed: int(active().collective.broadcast("prepare_data_loader() with a generator", seed)),
        )
    device = get_device() if move_to_device else None
    return cast("DataLoader[Any]", PreparedDataLoader(data_loader, device, auto_transfer))


def enable_reproducibility(seed: int = 0) -> None:
    """Make this process repeat itself, as far as torch can: seed its generators, and choose deterministic algorithms.

    Seeds Python's, numpy's and torch's generators, and through torch's the workers of data loaders that are
    started from here on; a loader with a ``generator`` of its own follows that. Operations that torch has no
    deterministic form of raise from here on. For good: nothing is set back at the end of a run. Works outside a run
    too. For what stays open, see torch's notes on reproducibility.

    Args:
        seed: from 0 to 2**32 - 1, as numpy takes it.

    Raises:
        UsageError: the seed cannot be meant.
    """
    import numpy as np
    import torch

    seed_range = "takes a whole number from 0 to 2**32 - 1"
    number = check_integer("enable_reproducibility(): seed", seed, at_least=0, remedy=seed_range)
    if number > _LARGEST_SEED:
        raise refused("enable_reproducibility(): seed", seed, seed_range)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
    torch.backends.cudnn.benchmark = False
    # cuBLAS is deterministic only with this, and torch raises without it. See
    # https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
