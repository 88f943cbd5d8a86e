"""A small Ray cluster on this machine, for the tests of one session."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator

__all__ = ["local_cluster"]


@contextlib.contextmanager
def local_cluster(num_cpus: int = 4) -> Iterator[None]:
    """Have one for the length of the block; one that this process is connected to already is used, and left as it is.

    Args:
        num_cpus: how many CPUs it says that it has.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        import ray

        if ray.is_initialized():
            yield
            return
        breakpoint_hook = os.environ.get("PYTHONBREAKPOINT")
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=num_cpus,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        # Ray has breakpoint() mean its own debugger, in this process and all that it starts.
        if breakpoint_hook is None:
            os.environ.pop("PYTHONBREAKPOINT", None)
        else:
            os.environ["PYTHONBREAKPOINT"] = breakpoint_hook
        try:
            yield
        finally:
            ray.shutdown()
