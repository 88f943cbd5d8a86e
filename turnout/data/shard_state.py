"""`ShardState`: where a rank is inside of an epoch, as `state_dict` gives it, and what makes it another shard's."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from turnout.checks import check_integer, refused
from turnout.errors import UsageError

__all__ = ["ShardState", "Shuffle"]

_REMEDY = "takes what state_dict() of a shard has returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """How an iteration shuffles.

    Args:
        buffer_size: rows among which one is drawn.
        seed: the number that the user gave, or text that was drawn.
    """

    buffer_size: int
    seed: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """A place in the data, and of which data it is one.

    Args:
        epoch: from 0.
        rows: that were given in it.
        seed: which draws the order of the pieces; None leaves them in theirs.
        shuffle: of the iteration that is under way, or None.
        rank: whose it is.
        world_size: among how many.
        equal: whether all have as many rows.
        total_rows: of the whole data.
        layout: a digest of the data's pieces and columns.
    """

    epoch: int
    rows: int
    seed: int | None
    shuffle: Shuffle | None
    rank: int
    world_size: int
    equal: bool
    total_rows: int
    layout: str

    def as_dict(self) -> dict[str, Any]:
        """It in types that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, state: Any) -> ShardState:  # Any: it checks
        """What `as_dict` made, also if it has been JSON since.

        Raises:
            UsageError: it is something else.
        """
        if not isinstance(state, dict) or state.keys() != {each.name for each in dataclasses.fields(cls)}:
            raise refused("load_state_dict(): state", state, _REMEDY)
        for name in ("epoch", "rows", "rank", "world_size", "total_rows"):
            check_integer(f"load_state_dict(): state[{name!r}]", state[name], at_least=0, remedy=_REMEDY)
        try:
            shuffle = None if state["shuffle"] is None else Shuffle(**state["shuffle"])
        except TypeError as error:
            raise refused("load_state_dict(): state['shuffle']", state["shuffle"], _REMEDY) from error
        return cls(**{**state, "shuffle": shuffle})

    def refuse_unless_of(self, name: str, own: ShardState, most_rows: int) -> None:
        """Refuse to go on in a shard where this place means something else.

        Args:
            name: of the data set, for errors.
            own: a place in the shard.
            most_rows: that an epoch of it has.

        Raises:
            UsageError: the shard is one of other data, or is cut otherwise.
        """
        text = f"load_state_dict() of datasets[{name!r}]: the state is of "
        if self.world_size != own.world_size:
            raise UsageError(
                f"{text}{self.world_size} ranks and this run has {own.world_size}: where each is inside of the epoch "
                "means nothing there. Begin the epoch anew"
            )
        if self.equal != own.equal:
            raise UsageError(f"{text}shares with equal={self.equal}, and here DataConfig.equal={own.equal}")
        if self.total_rows != own.total_rows:
            raise UsageError(f"{text}data with {self.total_rows} rows, and this has {own.total_rows}")
        if self.layout != own.layout:
            raise UsageError(
                f"{text}other data: its columns differ, or its {own.total_rows} rows lie in other files or row groups"
            )
        if self.rows > most_rows:
            raise UsageError(f"{text}{self.rows} rows given, and the share of a rank has no more than {most_rows}")
        if self.shuffle is not None and self.rank != own.rank and isinstance(self.shuffle.seed, str):
            raise UsageError(
                f"{text}rank {self.rank}, which drew a seed of its own to shuffle by, and this is rank {own.rank}: "
                "save the state of every rank, or give all of them one local_shuffle_seed"
            )

    def shuffle_to_go_on_with(self, buffer_size: int | None, seed: int | None) -> Shuffle | None:
        """How the rest of the epoch is shuffled, if it is asked for with these arguments.

        Raises:
            UsageError: as another epoch than the one that was begun.
        """
        begun = self.shuffle
        if buffer_size != (begun and begun.buffer_size) or (begun and seed not in (None, begun.seed)):
            was = "none" if begun is None else str(begun.buffer_size)
            was_seed = "" if begun is None or isinstance(begun.seed, str) else f" and local_shuffle_seed={begun.seed}"
            raise UsageError(
                "an epoch is gone on with as it was begun: the state that was loaded is of one with "
                f"local_shuffle_buffer_size={was}{was_seed}; this asks for {buffer_size} with seed {seed}"
            )
        return begun
