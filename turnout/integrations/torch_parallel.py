"""How several ranks train one torch model together: the three strategies, and what each is told."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from turnout.checks import check_choice, check_mapping
from turnout.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["check_parallel_strategy", "parallel"]

logger = logging.getLogger(__name__)

_STRATEGIES = ("ddp", "fsdp", "fsdp2")


def check_parallel_strategy(strategy: Any, kwargs: Any) -> None:  # Any: these are what it checks
    """Refuse what no strategy is called, and arguments that the strategy does not take."""
    if strategy is not None:
        check_choice("prepare_model(): parallel_strategy", strategy, _STRATEGIES)
    if kwargs is None:
        return
    check_mapping("prepare_model(): parallel_strategy_kwargs", kwargs, "arguments of what wraps the model")
    if not kwargs:
        return
    if strategy is None:
        names = ", ".join(kwargs)
        logger.warning(
            "prepare_model(): parallel_strategy_kwargs (%s) have no effect, because parallel_strategy=None", names
        )
        return
    wrapper = _wrapper(strategy)
    taken = [name for name in inspect.signature(wrapper).parameters if name != "module"]
    for name in kwargs:
        if name not in taken:
            raise UsageError(
                f"prepare_model(): parallel_strategy_kwargs has {name!r}, which {wrapper.__name__} of this torch does "
                f"not take; it takes {', '.join(taken)}"
            )


def parallel(model: torch.nn.Module, strategy: str, kwargs: dict[str, Any]) -> torch.nn.Module:
    """The model as all ranks train it together; see `turnout.torch.prepare_model`.

    Args:
        model: where it shall be trained.
        strategy: one that was checked.
        kwargs: the user's own arguments for what wraps it, checked too.

    Raises:
        UsageError: there is no process group.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise UsageError(
            "prepare_model(): there are several workers and no process group of torch's; a turnout.torch.TorchTrainer "
            "makes one. To leave the model bare, pass parallel_strategy=None"
        )
    if strategy == "ddp" and not any(each.requires_grad for each in model.parameters()):
        logger.debug("nothing in the model is trained, so it is not wrapped")
        return model
    wrapped: torch.nn.Module = _wrapper(strategy)(model, **{**_chosen(model, strategy), **kwargs})
    return wrapped


def _wrapper(strategy: str) -> Callable[..., Any]:  # Any: torch's own, each with a signature of its own
    if strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel
    if strategy == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise UnsupportedError(
            "prepare_model(): parallel_strategy='fsdp2' needs torch 2.6 or newer; 'fsdp' works with this one"
        ) from error
    return fully_shard


def _chosen(model: torch.nn.Module, strategy: str) -> dict[str, Any]:
    """What the wrapper is told where the user says nothing: to stay on the devices that the model is on.

    Left to themselves both forms of FSDP go to the machine's accelerator, and the first refuses where there is none.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    devices = {each.device for each in model.parameters() if each.device.type != "meta"}
    device = devices.pop() if len(devices) == 1 else None
    if strategy == "ddp":
        # A model on several devices must not be given any, by the documentation of DistributedDataParallel.
        return {"device_ids": [device]} if device is not None and device.type == "cuda" else {}
    if device is None:
        return {}
    if strategy == "fsdp":
        return {"device_id": device}
    return {"mesh": init_device_mesh(device.type, (dist.get_world_size(),))}
