"""Checkpoints to which each rank adds the shards that it holds, by `torch.distributed.checkpoint`."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from turnout.checkpoint import Checkpoint
from turnout.checks import check_mapping, refused
from turnout.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["load_sharded", "save_sharded"]


def save_sharded(state: dict[str, Any], folder: str | os.PathLike[str]) -> None:  # Any: whatever is to be saved
    """Write what this rank holds of a state into a folder of its own, to be reported as a checkpoint.

    Every rank calls it alike, each with a folder of its own, and reports that: the report puts their files side by
    side, so that the ranks need no common disk and none gathers the whole. What all ranks hold alike is written once.

    Args:
        state: by name, models and optimizers themselves, wrapped or sharded as they are (of an optimizer the model must
            be there too), tensors and `DTensor`, nested dicts of these, and plain values such as an epoch.
        folder: a local one, made if need be.

    Raises:
        UsageError: an argument cannot be meant.

    Example:
        >>> def train_fn():
        ...     with tempfile.TemporaryDirectory() as folder:
        ...         save_sharded({"model": model, "optimizer": optimizer, "epoch": epoch}, folder)
        ...         turnout.report(metrics, checkpoint=Checkpoint.from_directory(folder))
    """
    import torch.distributed.checkpoint as dcp

    check_mapping("save_sharded(): state", state, "models, optimizers, tensors and plain values")
    os.makedirs(folder, exist_ok=True)
    tensors = _as_tensors("save_sharded()", state)
    with _alone_if_need_be() as is_alone:
        dcp.save(tensors, checkpoint_id=folder, no_dist=is_alone)  # type: ignore[attr-defined]  # exported without a word


def load_sharded(state: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:  # Any: as above
    """Read a checkpoint that `save_sharded` has written, on as many ranks as there are now, whoever wrote which part.

    Every rank calls it alike, and gets the parts that it holds. Models, optimizers and tensors are filled in place.

    Args:
        state: of the same names as the one that was saved; it says by what it holds which parts this rank wants. Plain
            values in it are placeholders.
        checkpoint: the checkpoint. One that is not on a local disk is downloaded first, once for each node.

    Returns:
        The state, with the plain values that were saved.

    Raises:
        UsageError: an argument cannot be meant.
        CheckpointNotFoundError: the checkpoint's folder is not there.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    check_mapping("load_sharded(): state", state, "models, optimizers, tensors and plain values")
    if not isinstance(checkpoint, Checkpoint):
        raise refused("load_sharded(): checkpoint", checkpoint, "takes a turnout.Checkpoint")
    tensors = _as_tensors("load_sharded()", state)
    with checkpoint.as_directory() as folder:
        if not os.path.exists(os.path.join(folder, ".metadata")):
            raise UsageError(f"load_sharded(): {checkpoint!r} was not written by save_sharded() or dcp.save()")
        with _alone_if_need_be() as is_alone:
            dcp.load(tensors, checkpoint_id=folder, no_dist=is_alone)  # type: ignore[attr-defined]  # as above
    models = _models(state)
    for name, value in state.items():
        if name in models:
            set_model_state_dict(value, tensors[name])
        elif _is_optimizer(value):
            set_optimizer_state_dict(_model_of("load_sharded()", name, value, models), value, tensors[name])
    return {name: value if name in models or _is_optimizer(value) else tensors[name] for name, value in state.items()}


@contextlib.contextmanager
def _alone_if_need_be() -> Iterator[bool]:
    """Whether this is one process and no rank, of which torch would warn, though it is told."""
    import torch.distributed as dist

    is_alone = not dist.is_initialized()
    with warnings.catch_warnings() if is_alone else contextlib.nullcontext():
        if is_alone:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield is_alone


def _as_tensors(caller: str, state: dict[str, Any]) -> dict[str, Any]:
    """The state as `torch.distributed.checkpoint` takes it: of a model or an optimizer the names and the tensors."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    models = _models(state)
    tensors: dict[str, Any] = {}
    for name, value in state.items():
        if name in models:
            tensors[name] = get_model_state_dict(value)
        elif _is_optimizer(value):
            tensors[name] = get_optimizer_state_dict(_model_of(caller, name, value, models), value)
        else:
            tensors[name] = value
    return tensors


def _models(state: dict[str, Any]) -> dict[str, torch.nn.Module]:
    import torch

    return {name: value for name, value in state.items() if isinstance(value, torch.nn.Module)}


def _is_optimizer(value: Any) -> bool:
    import torch

    return isinstance(value, torch.optim.Optimizer)


def _model_of(caller: str, name: str, optimizer: Any, models: dict[str, torch.nn.Module]) -> torch.nn.Module:
    """The model whose parameters an optimizer trains, which gives them their names."""
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for model in models.values():
        if trained <= {id(each) for each in model.parameters()}:
            return model
    raise UsageError(
        f"{caller}: state has the optimizer {name!r}, and no model that has all of its parameters and would name them; "
        "put the model into the state too"
    )
