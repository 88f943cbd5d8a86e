"""What the tests of Lightning, Transformers and accelerate share: a server whose ranks need not import them again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import torch

__all__ = ["FRAMEWORKS", "PRELOADED", "loaded_after", "one_thread"]

PRELOADED = (
    "accelerate",
    "lightning.pytorch",
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.trainer",
)
FRAMEWORKS = (
    "torch",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "tensorflow",
    "jax",
    "xgboost",
    "ray",
)


def loaded_after(code: str) -> list[str]:
    """The frameworks that a fresh interpreter has imported after running ``code``."""
    program = f"import sys\n{code}\nprint(*[name for name in {FRAMEWORKS!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    return done.stdout.split()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute as the ranks do: what is as small as here takes several threads longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
