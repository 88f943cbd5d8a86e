"""`TorchConfig`: how the ranks of a run join torch's process group."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.checks import check_choice, check_number, check_text
from turnout.config import BackendConfig

__all__ = ["TorchConfig"]


@dataclass(frozen=True, slots=True, repr=False)
class TorchConfig(BackendConfig):
    """How the ranks of a run join torch's process group.

    Example:
        >>> TorchConfig(backend="gloo", timeout_s=60)
        TorchConfig(backend='gloo', timeout_s=60.0)

    Args:
        backend: as `torch.distributed.init_process_group` names it: ``"gloo"``, ``"nccl"``, or one for each device,
            ``"cpu:gloo,cuda:nccl"``. None chooses nccl where CUDA is available, else gloo.
        init_method: how ranks find each other: ``"env"`` by ``MASTER_ADDR`` and ``MASTER_PORT``, ``"tcp"`` by a URL.
        timeout_s: seconds that a collective operation may take.

    Raises:
        UsageError: a field cannot be meant.
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        if self.backend is not None:
            check_text("TorchConfig.backend", self.backend, 'None or a backend of torch.distributed such as "gloo"')
        check_choice("TorchConfig.init_method", self.init_method, ("env", "tcp"))
        self._set("timeout_s", check_number("TorchConfig.timeout_s", self.timeout_s, above=0, unit="seconds"))
