"""`TrainContext`: what a train function may ask about its run and its place in it."""

from __future__ import annotations

from turnout.session.checkpoints import Checkpoints
from turnout.session.events import RankInfo
from turnout.session.run_storage import RunStorage

__all__ = ["TrainContext"]


class TrainContext:
    """What `get_context()` returns; the same on every thread of a worker.

    Args:
        run_name: the run's name.
        ranks: who this worker is.
        checkpoints: the part that knows the run's storage.
    """

    __slots__ = ("_checkpoints", "_ranks", "_run_name")

    def __init__(self, *, run_name: str, ranks: RankInfo, checkpoints: Checkpoints) -> None:
        self._run_name = run_name
        self._ranks = ranks
        self._checkpoints = checkpoints

    def get_experiment_name(self) -> str:
        """The run's name, the same on every rank."""
        return self._run_name

    def get_world_size(self) -> int:
        """How many workers run the train function."""
        return self._ranks.world_size

    def get_world_rank(self) -> int:
        """This worker's number among all, from 0."""
        return self._ranks.rank

    def get_local_rank(self) -> int:
        """This worker's number among those of its node, from 0."""
        return self._ranks.local_rank

    def get_local_world_size(self) -> int:
        """How many workers its node has."""
        return self._ranks.local_world_size

    def get_node_rank(self) -> int:
        """The number of its node, from 0."""
        return self._ranks.node_rank

    def get_storage(self) -> RunStorage:
        """The run's storage.

        Raises:
            NotImplementedError: the run is in memory; pass ``RunConfig(storage_path=...)``.
        """
        return self._checkpoints.storage()

    def __repr__(self) -> str:
        ranks = self._ranks
        return f"TrainContext(run={self._run_name!r}, rank={ranks.rank}, world_size={ranks.world_size})"
