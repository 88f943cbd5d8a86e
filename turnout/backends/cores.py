"""How the ranks of one node share its cores, where each framework would use them all on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import CDLL

from turnout.session.events import RankInfo

__all__ = ["share_of_cores", "share_openmp"]


def share_of_cores(ranks: RankInfo) -> int | None:
    """How many threads this rank shall compute with; None where it is alone on its node, or the user has said how many.

    Args:
        ranks: who this rank is.
    """
    if ranks.local_world_size == 1 or os.environ.get("OMP_NUM_THREADS"):
        return None
    return max(1, _num_cores() // ranks.local_world_size)


def share_openmp(ranks: RankInfo, library: CDLL) -> Callable[[], None]:
    """Have a library that computes by OpenMP use this rank's share of the cores on the current thread.

    It is the default of the library that changes: who asks for a number of threads gets it.

    Args:
        ranks: who this rank is.
        library: as it was loaded. What has no OpenMP, or hides it, is left as it is.

    Returns:
        What puts it back.
    """
    share = share_of_cores(ranks)
    try:
        get_threads, set_threads = library.omp_get_max_threads, library.omp_set_num_threads
    except AttributeError:
        return _nothing
    before: int = get_threads()
    if share is None or share >= before:
        return _nothing
    set_threads(share)
    return lambda: set_threads(before)


def _nothing() -> None:
    """There is nothing to put back."""


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
