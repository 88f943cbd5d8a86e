"""`DeviceMesh`: the workers of a group arranged in named dimensions, and who shares what with whom."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from turnout.checks import check_integer, refused
from turnout.errors import UsageError
from turnout.infra.whoami import current_rank

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DeviceMesh", "balanced", "data_parallel_mesh"]

_ORDER = ("fsdp", "pp", "dp", "cp", "tp")  # from outermost to innermost
_DIMS = (*_ORDER, "ep", "ep_fsdp")


def balanced(total: int, num_parts: int, index: int) -> slice:
    """The part of ``total`` things that is number ``index``: contiguous, sizes differ by one at most, longer first."""
    size, num_longer = divmod(total, num_parts)
    start = index * size + min(index, num_longer)
    return slice(start, start + size + (index < num_longer))


class DeviceMesh:
    """Workers 0 to N - 1 of a group in named dimensions.

    A mesh knows of no process group until it is asked to make one; all else is arithmetic. Where a rank may be left
    out, it is that of the calling process.

    Args:
        mesh: the ranks, as a nested list or a numpy array.
        mesh_dim_names: one for each dimension: of "dp", "fsdp", "pp", "cp", "tp", "ep", "ep_fsdp".
        ep_size: ranks that share the experts among them; no dimension of its own, but laid over the others.
        etp_size: ranks that share one expert.
        vpp_size: virtual stages of each pipeline stage.
        ulysses_size: neighbouring data ranks that share each sequence, and so get the same data.
        device_type: that its process groups are for, such as "cuda"; None finds out.

    Example:
        >>> mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
        >>> mesh.shape, mesh.mesh_dim_names
        ((2, 2), ('dp', 'tp'))
        >>> [mesh.get_data_rank_from_global_rank(rank) for rank in range(4)]
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        mesh: Any,  # Any: nested sequences of any depth, or an array
        mesh_dim_names: Sequence[str],
        *,
        ep_size: int | None = None,
        etp_size: int | None = None,
        vpp_size: int | None = None,
        ulysses_size: int | None = None,
        device_type: str | None = None,
    ) -> None:
        self.mesh_dim_names = tuple(mesh_dim_names)
        self.shape, self._ranks = _flattened(mesh)
        self.ep_size = _size("ep_size", ep_size)
        self.etp_size = _size("etp_size", etp_size)
        self.vpp_size = _size("vpp_size", vpp_size)
        self.ulysses_size = _size("ulysses_size", ulysses_size)
        self.device_type = device_type
        self._check()
        coordinates = itertools.product(*(range(size) for size in self.shape))
        self._coordinates = dict(zip(self._ranks, coordinates, strict=True))

    def _check(self) -> None:
        unknown = [name for name in self.mesh_dim_names if name not in _DIMS]
        if unknown or len(set(self.mesh_dim_names)) < len(self.mesh_dim_names):
            raise refused(
                "DeviceMesh.mesh_dim_names", self.mesh_dim_names, f"takes different ones of {', '.join(_DIMS)}"
            )
        if len(self.shape) != len(self.mesh_dim_names):
            raise UsageError(
                f"DeviceMesh: the mesh has {len(self.shape)} dimension(s), and mesh_dim_names={self.mesh_dim_names} "
                f"names {len(self.mesh_dim_names)}"
            )
        if len(set(self._ranks)) < len(self._ranks) or any(rank < 0 for rank in self._ranks):
            raise UsageError(f"DeviceMesh: the ranks {list(self._ranks)} are not different whole numbers from 0 on")
        num_data = self._num_unshared_data
        if num_data % (self.ulysses_size or 1):
            raise refused(
                "DeviceMesh.ulysses_size", self.ulysses_size, f"takes a divisor of dp x fsdp, which is {num_data}"
            )
        num_experts = (self.ep_size or 1) * (self.etp_size or 1)
        if (self.world_size // self._size_of("pp")) % num_experts and not self.has_dim("ep"):
            raise refused(
                "DeviceMesh.ep_size",
                self.ep_size,
                f"ep_size x etp_size is {num_experts}, which does not divide the "
                f"{self.world_size // self._size_of('pp')} ranks of a pipeline stage",
            )

    @classmethod
    def from_sizes(
        cls,
        *,
        world_size: int | None = None,
        dp_size: int | None = None,
        fsdp_size: int | None = None,
        tp_size: int | None = None,
        pp_size: int | None = None,
        cp_size: int | None = None,
        ep_size: int | None = None,
        etp_size: int | None = None,
        ulysses_size: int | None = None,
        vpp_size: int | None = None,
        device_type: str | None = None,
    ) -> DeviceMesh:
        """Ranks in order over fsdp, pp, dp, cp, tp, from outermost to innermost; a dimension that is None is absent.

        Args:
            world_size: how many ranks there are, to be checked; None takes the product of the sizes. With it alone
                all are data parallel.
            dp_size: copies of the model, each with data of its own.
            fsdp_size: data parallel ranks that share the parameters among them.
            tp_size: ranks that share each layer.
            pp_size: pipeline stages.
            cp_size: ranks that share each sequence.
            ep_size: see the class.
            etp_size: see the class.
            ulysses_size: see the class.
            vpp_size: see the class.
            device_type: see the class.

        Raises:
            UsageError: the product is not ``world_size``, or a size cannot be meant.
        """
        given = {"fsdp": fsdp_size, "pp": pp_size, "dp": dp_size, "cp": cp_size, "tp": tp_size}
        sizes: dict[str, int] = {}
        for name in _ORDER:
            size = _size(f"{name}_size", given[name])
            if size is not None:
                sizes[name] = size
        if not sizes:
            sizes = {"dp": _size("world_size", world_size) or 1}
        product = 1
        for size in sizes.values():
            product *= size
        if world_size is not None and world_size != product:
            listed = " x ".join(f"{name}={size}" for name, size in sizes.items())
            raise UsageError(f"DeviceMesh.from_sizes(): world_size={world_size}, but {listed} are {product} ranks")
        return cls(
            _nested(range(product), tuple(sizes.values())),
            tuple(sizes),
            ep_size=ep_size,
            etp_size=etp_size,
            vpp_size=vpp_size,
            ulysses_size=ulysses_size,
            device_type=device_type,
        )

    # -- what it is

    @property
    def mesh(self) -> np.ndarray[Any, Any]:
        """The ranks as an array."""
        import numpy as np

        return np.array(self._ranks).reshape(self.shape)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, in the mesh's order."""
        return self._ranks

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self._ranks)

    def has_dim(self, name: str) -> bool:
        """Whether there is a dimension of this name."""
        return name in self.mesh_dim_names

    def get_dim_size(self, name: str) -> int:
        """The size of a dimension.

        Raises:
            UsageError: there is none of this name.
        """
        if not self.has_dim(name):
            raise UsageError(
                f"DeviceMesh.get_dim_size({name!r}): the mesh has the dimensions {', '.join(self.mesh_dim_names)}"
            )
        return self.shape[self.mesh_dim_names.index(name)]

    def coordinate_of(self, rank: int | None = None) -> dict[str, int] | None:
        """Where a rank is, by dimension; None if it is not in the mesh."""
        coordinates = self._coordinates.get(current_rank() if rank is None else rank)
        return None if coordinates is None else dict(zip(self.mesh_dim_names, coordinates, strict=True))

    @property
    def dp_rank(self) -> int | None:
        """This process's place in the dimension; None if that is absent, or the process is not in the mesh."""
        return self._rank_in("dp")

    @property
    def fsdp_rank(self) -> int | None:
        """This process's place in the dimension; None if that is absent, or the process is not in the mesh."""
        return self._rank_in("fsdp")

    @property
    def tp_rank(self) -> int | None:
        """This process's place in the dimension; None if that is absent, or the process is not in the mesh."""
        return self._rank_in("tp")

    @property
    def pp_rank(self) -> int | None:
        """This process's place in the dimension; None if that is absent, or the process is not in the mesh."""
        return self._rank_in("pp")

    @property
    def cp_rank(self) -> int | None:
        """This process's place in the dimension; None if that is absent, or the process is not in the mesh."""
        return self._rank_in("cp")

    @property
    def ep_rank(self) -> int | None:
        """This process's place in the dimension; None if that is absent, or the process is not in the mesh."""
        return self._rank_in("ep")

    @property
    def dp_world_size(self) -> int:
        """The dimension's size; 1 if it is absent."""
        return self._size_of("dp")

    @property
    def fsdp_world_size(self) -> int:
        """The dimension's size; 1 if it is absent."""
        return self._size_of("fsdp")

    @property
    def tp_world_size(self) -> int:
        """The dimension's size; 1 if it is absent."""
        return self._size_of("tp")

    @property
    def pp_world_size(self) -> int:
        """The dimension's size; 1 if it is absent."""
        return self._size_of("pp")

    @property
    def cp_world_size(self) -> int:
        """The dimension's size; 1 if it is absent."""
        return self._size_of("cp")

    @property
    def ep_world_size(self) -> int:
        """The dimension's size, or how many ranks share the experts; 1 if neither is said."""
        return self._size_of("ep") if self.has_dim("ep") else self.ep_size or 1

    @property
    def etp_world_size(self) -> int:
        """How many ranks share one expert."""
        return self.etp_size or 1

    # -- data

    @property
    def data_world_size(self) -> int:
        """Into how many parts data are cut: dp x fsdp, divided by the ranks that share each sequence."""
        return self._num_unshared_data // (self.ulysses_size or 1)

    @property
    def data_rank(self) -> int | None:
        """Which part of the data is this process's; None if it is not in the mesh."""
        return self.get_data_rank_from_global_rank(current_rank())

    def get_data_rank_from_global_rank(self, rank: int) -> int | None:
        """Which part of the data is a rank's; ranks that differ in tp, pp, cp or ep alone have the same."""
        coordinates = self.coordinate_of(rank)
        if coordinates is None:
            return None
        unshared = coordinates.get("dp", 0) * self._size_of("fsdp") + coordinates.get("fsdp", 0)
        return unshared // (self.ulysses_size or 1)

    def get_slice(self, total: int, rank: int | None = None) -> slice:
        """Which of ``total`` rows are those of data rank ``rank``; this process's if it is None.

        Raises:
            UsageError: there is no such data rank.
        """
        index = self.data_rank if rank is None else rank
        if index is None or not 0 <= index < self.data_world_size:
            raise refused("DeviceMesh.get_slice(): rank", index, f"takes a data rank below {self.data_world_size}")
        return balanced(total, self.data_world_size, index)

    # -- who shares what

    def get_tp_ranks(self, rank: int | None = None) -> list[int]:
        """The ranks that share each layer with a rank, itself among them."""
        return self._beside(("tp",), rank)

    def get_tp_last_ranks(self) -> list[int]:
        """The last rank of each tensor parallel group."""
        return self._at("tp", self._size_of("tp") - 1)

    def get_pp_stage_ranks(self, stage: int) -> list[int]:
        """The ranks of a pipeline stage.

        Raises:
            UsageError: there is no such stage.
        """
        if not 0 <= stage < self._size_of("pp"):
            raise refused("DeviceMesh.get_pp_stage_ranks(): stage", stage, f"there are {self._size_of('pp')} from 0 on")
        return self._at("pp", stage)

    def get_pp_first_ranks(self) -> list[int]:
        """The ranks of the first pipeline stage; all, without one."""
        return self._at("pp", 0)

    def get_pp_last_ranks(self) -> list[int]:
        """The ranks of the last pipeline stage; all, without one."""
        return self._at("pp", self._size_of("pp") - 1)

    def get_collect_ranks(self) -> list[int]:
        """One rank for each data rank, in the order of the data: of the last pipeline stage, the first there."""
        return self.representatives(self._ranks)

    def representatives(self, ranks: Iterable[int]) -> list[int]:
        """Of some ranks, those of `get_collect_ranks`: where the last stage is not among them, the last that is."""
        chosen: dict[int, tuple[tuple[int, int], int]] = {}
        for rank in ranks:
            coordinates, data_rank = self.coordinate_of(rank), self.get_data_rank_from_global_rank(rank)
            if coordinates is not None and data_rank is not None:
                worth = (-coordinates.get("pp", 0), rank)
                if data_rank not in chosen or worth < chosen[data_rank][0]:
                    chosen[data_rank] = (worth, rank)
        return [chosen[data_rank][1] for data_rank in sorted(chosen)]

    # -- torch

    def to_torch_device_mesh(self) -> Any:  # Any: torch's own, which this file does not import
        """The same as torch's ``DeviceMesh``, which makes a process group for each dimension; on every rank.

        Raises:
            UsageError: torch's process group is not initialised.
        """
        from turnout.infra.torch_groups import torch_device_mesh

        return torch_device_mesh(self)

    def create_process_group(self, dims: Sequence[str]) -> Any:  # Any: torch's own
        """A process group of this rank and those that differ from it in ``dims`` alone; every rank calls it.

        Raises:
            UsageError: a dimension is absent, or torch's process group is not initialised.
        """
        from turnout.infra.torch_groups import process_group

        for name in dims:
            self.get_dim_size(name)
        groups = list(dict.fromkeys(tuple(self._beside(dims, rank)) for rank in self._ranks))
        return process_group(groups)

    # -- values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        listed = " x ".join(f"{name}={size}" for name, size in zip(self.mesh_dim_names, self.shape, strict=True))
        laid_over = {
            "ep": self.ep_size, "etp": self.etp_size, "vpp": self.vpp_size, "ulysses": self.ulysses_size
        }  # fmt: skip
        more = "".join(f", {name}={size}" for name, size in laid_over.items() if size not in (None, 1))
        return f"DeviceMesh({listed}{more})"

    @property
    def _key(self) -> tuple[Any, ...]:
        sizes = (self.ep_size, self.etp_size, self.vpp_size, self.ulysses_size)
        return (self.mesh_dim_names, self.shape, self._ranks, sizes, self.device_type)

    @property
    def _num_unshared_data(self) -> int:
        return self._size_of("dp") * self._size_of("fsdp")

    def _size_of(self, name: str) -> int:
        return self.get_dim_size(name) if self.has_dim(name) else 1

    def _rank_in(self, name: str) -> int | None:
        coordinates = self.coordinate_of()
        return None if coordinates is None else coordinates.get(name)

    def _at(self, name: str, place: int) -> list[int]:
        if not self.has_dim(name):
            return sorted(self._ranks)
        index = self.mesh_dim_names.index(name)
        return sorted(rank for rank, coordinates in self._coordinates.items() if coordinates[index] == place)

    def _beside(self, dims: Sequence[str], rank: int | None) -> list[int]:
        """The ranks that differ from one in ``dims`` alone, itself among them."""
        own = self.coordinate_of(rank)
        if own is None:
            raise UsageError(f"DeviceMesh: rank {current_rank() if rank is None else rank} is not in {self}")
        fixed = [index for index, name in enumerate(self.mesh_dim_names) if name not in dims]
        key = [list(own.values())[index] for index in fixed]
        return [other for other, each in self._coordinates.items() if [each[index] for index in fixed] == key]


def _size(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    return check_integer(f"DeviceMesh: {name}", value, at_least=1, remedy="takes a whole number of at least 1, or None")


def _nested(ranks: Sequence[int], shape: tuple[int, ...]) -> Any:  # Any: lists of lists
    if len(shape) == 1:
        return list(ranks)
    step = len(ranks) // shape[0]
    return [_nested(ranks[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]


def _flattened(mesh: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the ranks of a nested list or an array."""
    nested = mesh.tolist() if hasattr(mesh, "tolist") else mesh
    shape: list[int] = []
    level: list[Any] = [nested]
    while level and isinstance(level[0], (list, tuple)):
        sizes = {len(each) if isinstance(each, (list, tuple)) else -1 for each in level}
        if len(sizes) > 1 or 0 in sizes:
            raise UsageError(f"DeviceMesh: the mesh {nested!r} is ragged or empty; every row is as long as the others")
        shape.append(sizes.pop())
        level = [item for each in level for item in each]
    if not shape:
        raise UsageError(f"DeviceMesh: the mesh {nested!r} is no list of ranks")
    remedy = "takes whole numbers from 0 on"
    return tuple(shape), tuple(check_integer("DeviceMesh: a rank", each, at_least=0, remedy=remedy) for each in level)


@functools.cache
def data_parallel_mesh(world_size: int) -> DeviceMesh:
    """The mesh of a group for which none was given."""
    return DeviceMesh.from_sizes(dp_size=world_size)
