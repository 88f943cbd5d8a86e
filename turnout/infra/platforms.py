"""`Platform`: what one kind of device asks for, such as the variable that hides the others'; cuda, npu and cpu.

Others come from the entry-point group ``turnout.platforms``, by name; one that is there already cannot be replaced.
"""

from __future__ import annotations

import glob
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from turnout.errors import UsageError

__all__ = ["CPUPlatform", "CUDAPlatform", "NPUPlatform", "Platform", "detected_platform", "platform_of"]

_ENTRY_POINTS = "turnout.platforms"


class Platform(ABC):
    """One kind of device.

    Example:
        >>> class Toy(Platform):
        ...     name = "toy"
        ...     resource = "TOY"
        ...     visible_devices_variable = "TOY_VISIBLE"
        ...     backend = "gloo"
        ...
        ...     def is_present(self) -> bool:
        ...         return False
        >>> Toy().worker_variables(["3"])
        {'TOY_VISIBLE': '3'}
    """

    name: ClassVar[str]
    """As a `DeviceGroup` names it."""
    resource: ClassVar[str]
    """As Ray counts it."""
    visible_devices_variable: ClassVar[str | None]
    """Hides the other devices from a process."""
    backend: ClassVar[str]
    """Of torch's process groups."""
    noset_variables: ClassVar[tuple[str, ...]] = ()
    """Keep Ray from setting `visible_devices_variable` itself."""

    @abstractmethod
    def is_present(self) -> bool:
        """Whether this machine has such devices."""

    def physical_devices(self, given: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The physical devices of a placement group's bundle, in their order.

        Args:
            given: what Ray says that it gave to a task with the whole bundle.
            environment: of that task, where Ray does not know such devices.
        """
        named = list(given)
        if not named and self.visible_devices_variable is not None:
            named = [each for each in environment.get(self.visible_devices_variable, "").split(",") if each]
        return sorted(named, key=lambda device: (0, int(device), "") if device.isdigit() else (1, 0, device))

    def worker_variables(self, devices: Sequence[str]) -> dict[str, str]:
        """The environment variables of a worker that has these devices."""
        if self.visible_devices_variable is None:
            return {}
        return {self.visible_devices_variable: ",".join(devices), **dict.fromkeys(self.noset_variables, "1")}

    def bind(self, local_rank: int) -> None:  # noqa: B027  # nothing is to be done where devices are hidden anyway
        """Have this process use the device of its local rank, where it sees several; torch is loaded."""


class CUDAPlatform(Platform):
    """GPUs of NVIDIA."""

    name = "cuda"
    resource = "GPU"
    visible_devices_variable = "CUDA_VISIBLE_DEVICES"
    backend = "nccl"
    noset_variables = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)

    def is_present(self) -> bool:
        """Whether the driver has made its files."""
        return bool(glob.glob("/dev/nvidia[0-9]*"))

    def bind(self, local_rank: int) -> None:
        """Make it torch's current device."""
        from turnout.infra.torch_state import bind_cuda

        bind_cuda(local_rank)


class NPUPlatform(Platform):
    """NPUs of Ascend."""

    name = "npu"
    resource = "NPU"
    visible_devices_variable = "ASCEND_RT_VISIBLE_DEVICES"
    backend = "hccl"
    noset_variables = ("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",)

    def is_present(self) -> bool:
        """Whether the driver has made its files."""
        return bool(glob.glob("/dev/davinci[0-9]*"))


class CPUPlatform(Platform):
    """No accelerator."""

    name = "cpu"
    resource = "CPU"
    visible_devices_variable = None
    backend = "gloo"

    def is_present(self) -> bool:
        """Always."""
        return True


_BUILT_IN: tuple[type[Platform], ...] = (CUDAPlatform, NPUPlatform, CPUPlatform)


def platform_of(name: str) -> Platform:
    """The platform of a name.

    Raises:
        UsageError: there is none; the text names those that there are.
    """
    known = {platform.name: platform for platform in _BUILT_IN}
    if name in known:
        return known[name]()
    more = {each.name: each for each in importlib.metadata.entry_points(group=_ENTRY_POINTS)}
    if name not in more:
        listed = ", ".join([*known, *more])
        raise UsageError(
            f"DeviceGroup.device_type={name!r}: there are the platforms {listed}; another is registered under the "
            f"entry-point group {_ENTRY_POINTS!r}"
        )
    loaded = more[name].load()
    if not (isinstance(loaded, type) and issubclass(loaded, Platform)):
        raise UsageError(f"the entry point {more[name].value!r} of {_ENTRY_POINTS!r} is no class of turnout's Platform")
    return loaded()


def detected_platform() -> Platform:
    """Of the accelerators of this machine; the CPU's without one."""
    return next(platform for each in _BUILT_IN if (platform := each()).is_present())
