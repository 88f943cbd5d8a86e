"""`DeviceGroup`: which ranks a group of actors has, and on which devices; and the groups of a program, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from turnout.checks import check_integer, check_text, refused
from turnout.errors import UsageError

__all__ = ["DeviceGroup", "settled_groups"]


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Ranks that go by one name, and the devices they have.

    Args:
        name: that `remote_group` asks for.
        ranks: the numbers of its devices among those of its type in the whole program; a number takes the next so many.
        device_type: "cuda", "npu", "cpu" or another `Platform`'s name; "GPU" and "NPU" mean the first two.
        gpus_per_worker: devices of each actor: so many neighbours of ``ranks`` are one worker.
        visible_devices: the physical devices of the ranks, in their order, as their node names them; None finds them.
        shares_devices: its ranks may be another group's too, whose devices it then shares.

    Raises:
        UsageError: a field cannot be meant.
    """

    name: str
    ranks: list[int] | int
    device_type: str = "cpu"
    _: KW_ONLY
    gpus_per_worker: int = 1
    visible_devices: list[str] | None = None
    shares_devices: bool = False

    def __post_init__(self) -> None:
        check_text("DeviceGroup.name", self.name, "a name")
        check_text("DeviceGroup.device_type", self.device_type, "the name of a platform")
        check_integer("DeviceGroup.gpus_per_worker", self.gpus_per_worker, at_least=1, remedy="takes 1 or more")
        remedy = "takes a list of different whole numbers from 0 on, or how many there are"
        if isinstance(self.ranks, (list, tuple, range)):
            object.__setattr__(self, "ranks", list(self.ranks))
            for rank in self.ranks:
                check_integer("DeviceGroup.ranks", rank, at_least=0, remedy=remedy)
            if not self.ranks or len(set(self.ranks)) < len(self.ranks):
                raise refused("DeviceGroup.ranks", self.ranks, remedy)
        else:
            check_integer("DeviceGroup.ranks", self.ranks, at_least=1, remedy=remedy)
        if self.num_ranks % self.gpus_per_worker:
            raise refused(
                "DeviceGroup.gpus_per_worker", self.gpus_per_worker, f"does not divide its {self.num_ranks} ranks"
            )
        if self.visible_devices is not None and len(self.visible_devices) != self.num_ranks:
            raise refused(
                "DeviceGroup.visible_devices", self.visible_devices, f"takes one for each of its {self.num_ranks} ranks"
            )

    @property
    def num_ranks(self) -> int:
        """How many devices it has."""
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)

    @property
    def num_workers(self) -> int:
        """How many actors it has."""
        return self.num_ranks // self.gpus_per_worker

    @property
    def kind(self) -> str:
        """The name of its platform."""
        lower = self.device_type.lower()
        return "cuda" if lower == "gpu" else lower

    @property
    def listed_ranks(self) -> list[int]:
        """Its ranks one by one; from 0 on where they are not settled yet."""
        return list(range(self.ranks)) if isinstance(self.ranks, int) else list(self.ranks)

    def worker_ranks(self, worker: int) -> list[int]:
        """The ranks that are one worker's."""
        return self.listed_ranks[worker * self.gpus_per_worker : (worker + 1) * self.gpus_per_worker]


def settled_groups(groups: Sequence[DeviceGroup]) -> list[DeviceGroup]:
    """The groups of a program with all ranks listed.

    Raises:
        UsageError: two have one name, or a rank of the same type of device, and do not say that they share it.
    """
    if isinstance(groups, DeviceGroup) or not all(isinstance(group, DeviceGroup) for group in groups):
        raise refused("initialize(): groups", groups, "takes a list of DeviceGroup")
    settled: list[DeviceGroup] = []
    taken: dict[tuple[str, int], str] = {}
    for given in groups:
        group = given
        if group.name in [each.name for each in settled]:
            raise UsageError(f"initialize(): two groups are named {group.name!r}; every group has a name of its own")
        if isinstance(group.ranks, int):
            first = 1 + max((rank for kind, rank in taken if kind == group.kind), default=-1)
            group = dataclasses.replace(group, ranks=list(range(first, first + group.ranks)))
        for rank in group.listed_ranks:
            other = taken.setdefault((group.kind, rank), group.name)
            if other != group.name and not group.shares_devices:
                raise UsageError(
                    f"initialize(): rank {rank} of {group.kind} is in the groups {other!r} and {group.name!r}; give "
                    "each its own ranks, or the later one DeviceGroup(shares_devices=True)"
                )
        settled.append(group)
    return settled
