"""Meshes as torch's own process groups, and what the processes of torchrun gather through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnout.errors import UsageError
from turnout.infra.whoami import current_rank

if TYPE_CHECKING:
    from turnout.infra.device_mesh import DeviceMesh

__all__ = ["gathered", "process_group", "torch_device_mesh"]


def torch_device_mesh(mesh: DeviceMesh) -> Any:  # Any: torch's own has few types
    """The mesh as torch's."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    _check_initialised("DeviceMesh.to_torch_device_mesh()")
    device_type = mesh.device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return TorchDeviceMesh(device_type, torch.tensor(mesh.mesh), mesh_dim_names=mesh.mesh_dim_names)


def process_group(groups: Sequence[Sequence[int]]) -> Any:  # Any: torch's own
    """Make every group, as each rank must take part in that, and return this rank's."""
    import torch.distributed as dist

    _check_initialised("DeviceMesh.create_process_group()")
    own = None
    for ranks in groups:
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            own = group
    return own


def gathered(value: Any, world_size: int) -> list[Any]:  # Any: the user's own
    """The values of all processes of torchrun, by rank.

    Raises:
        UsageError: torch's process group is not initialised.
    """
    if world_size == 1:
        return [value]
    import torch.distributed as dist

    _check_initialised(f"a result of all ranks (all_ranks=True, on rank {current_rank()})")
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values


def _check_initialised(what: str) -> None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(f"{what} needs torch's process group; call torch.distributed.init_process_group() before it")
