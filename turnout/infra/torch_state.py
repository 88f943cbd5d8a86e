"""What infra asks of torch once it is loaded: deterministic algorithms, and the device of this process."""

from __future__ import annotations

import os

__all__ = ["be_as_before", "be_deterministic", "bind_cuda"]

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_before: dict[str, object] = {}


def be_deterministic() -> None:
    """Have torch choose deterministic algorithms, and warn where it has none; `be_as_before` ends it."""
    import torch

    if not _before:
        _before["algorithms"] = torch.are_deterministic_algorithms_enabled()
        _before["warn_only"] = torch.is_deterministic_algorithms_warn_only_enabled()
        _before["benchmark"] = torch.backends.cudnn.benchmark
        _before["variable"] = os.environ.get(_CUBLAS)
    # cuBLAS is deterministic only with this: https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
    os.environ[_CUBLAS] = ":4096:8"
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)


def be_as_before() -> None:
    """Choose algorithms as before `be_deterministic`, if it was called."""
    if not _before:
        return
    import torch

    torch.use_deterministic_algorithms(bool(_before["algorithms"]), warn_only=bool(_before["warn_only"]))
    torch.backends.cudnn.benchmark = bool(_before["benchmark"])
    variable = _before["variable"]
    if variable is None:
        os.environ.pop(_CUBLAS, None)
    else:
        os.environ[_CUBLAS] = str(variable)
    _before.clear()


def bind_cuda(local_rank: int) -> None:
    """Have this process use the CUDA device of its local rank, if it sees as many."""
    import torch

    if torch.cuda.is_available() and local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)
