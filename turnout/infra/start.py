"""`initialize` and `shutdown`: where the objects of a program's remote classes are built from here on."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from turnout.checks import check_choice, check_integer, check_number, check_text, refused
from turnout.environment import ranks_of_environment
from turnout.errors import UsageError
from turnout.infra import seeds, torch_state
from turnout.infra.device_group import DeviceGroup, settled_groups
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.notifiers import Notifier, check_notifier
from turnout.infra.platforms import detected_platform, platform_of
from turnout.infra.world import Settings, World, current_world, enter_world, is_initialized, leave_world

__all__ = ["Session", "initialize", "shutdown"]

logger = logging.getLogger(__name__)

_MODES = ("local", "ray")
_LOCAL_ARGS = ("global", "mine")


class Session:
    """What `initialize` returns: leaving its block is `shutdown`.

    Example:
        >>> import turnout.infra as infra
        >>> with infra.initialize("local", seed=42) as session:
        ...     [group.name for group in session.groups]
        ['default']
    """

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def groups(self) -> list[DeviceGroup]:
        """The groups, with all ranks listed."""
        return list(self._world.groups)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh over the processes that run this program."""
        return self._world.default_mesh(self._world.world_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if current_world() is self._world:
            shutdown()


def initialize(
    mode: str = "local",
    *,
    nproc_per_node: int = 8,
    ncpu_proc_per_node: int = 8,
    seed: int | None = 42,
    full_determinism: bool = False,
    groups: Sequence[DeviceGroup] | None = None,
    global_device_mesh: DeviceMesh | None = None,
    lazy_collect: bool = True,
    name: str | None = None,
    notifier: Notifier | None = None,
    simulate: bool = False,
    seed_mode: str = "same",
    local_args: str = "global",
    placement_timeout_s: float = 60.0,
) -> Session:
    """Settle where remote classes are built: in this process, on torchrun's, or on groups of a Ray cluster.

    Args:
        mode: "local" is this process, or those that torchrun has started; "ray" places ``groups`` on a cluster.
        nproc_per_node: accelerators of a node, by which ranks are dealt to nodes.
        ncpu_proc_per_node: workers of a CPU group on a node at most.
        seed: of Python's, numpy's and torch's generators, here and in every worker; None leaves them alone.
        full_determinism: deterministic kernels of torch's, too.
        groups: of the program; on Ray, and with ``simulate``.
        global_device_mesh: of objects that are given none, where its size is theirs.
        lazy_collect: False has remote functions wait, unless they say otherwise.
        name: of the run, for people.
        notifier: a callable of one string, that is told of failures; such as `SlackNotifier`.
        simulate: the groups of the Ray program in this process, one instance for each rank, taking turns.
        seed_mode: "same" for all workers, or one "per_rank" or "per_data_rank".
        local_args: under torchrun, "global" cuts what every process is called with; "mine" takes it as this one's.
        placement_timeout_s: for what is busy on the cluster to become free.

    Returns:
        A context manager that shuts down when it is left; a program that ends does so, too.

    Raises:
        UsageError: an argument cannot be meant, or it was called before with other arguments.
        ResourceError: the cluster cannot hold the groups, or has not in time.

    Example:
        >>> initialize("ray", nproc_per_node=8, groups=[  # doctest: +SKIP
        ...     DeviceGroup("model", [0, 1, 2, 3], "cuda"), DeviceGroup("rewards", 4, "cpu"),
        ... ])
    """
    settings = Settings(
        mode=mode,
        nproc_per_node=nproc_per_node,
        ncpu_proc_per_node=ncpu_proc_per_node,
        seed=seed,
        full_determinism=full_determinism,
        groups=None if groups is None else tuple(settled_groups(groups)),
        global_device_mesh=global_device_mesh,
        lazy_collect=lazy_collect,
        name=name,
        notifier=notifier,
        simulate=simulate,
        seed_mode=seed_mode,
        local_args=local_args,
        placement_timeout_s=placement_timeout_s,
    )
    _check(settings)
    if is_initialized():
        return _again(settings)
    world = _on_ray(settings) if mode == "ray" else _local(settings)
    enter_world(world)
    atexit.register(shutdown)
    return Session(world)


def shutdown() -> None:
    """End what `initialize` has begun: every actor and placement group is freed, and what nobody has read is reported.

    Without it, a program that ends does the same.
    """
    world = current_world()
    if not is_initialized() or world.worker_of is not None:
        return
    atexit.unregister(shutdown)
    try:
        world.close()
    finally:
        leave_world()
        seeds.forget_imports()
        torch_state.be_as_before()


def _check(settings: Settings) -> None:
    check_choice("initialize(): mode", settings.mode, _MODES)
    check_choice("initialize(): local_args", settings.local_args, _LOCAL_ARGS)
    for field in ("nproc_per_node", "ncpu_proc_per_node"):
        check_integer(f"initialize(): {field}", getattr(settings, field), at_least=1, remedy="takes 1 or more")
    check_number("initialize(): placement_timeout_s", settings.placement_timeout_s, above=0, unit="seconds")
    seeds.check_seed(settings.seed, settings.seed_mode)
    check_notifier(settings.notifier)
    if settings.name is not None:
        check_text("initialize(): name", settings.name, "a name")
    mesh = settings.global_device_mesh
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise refused("initialize(): global_device_mesh", mesh, "takes a DeviceMesh")
    for group in settings.groups or ():
        platform_of(group.kind)
    if settings.simulate and settings.mode == "ray":
        raise UsageError(
            'initialize("ray", simulate=True): simulate has the groups in this process; use "local" with it'
        )
    if not settings.groups and (settings.mode == "ray" or settings.simulate):
        needed = 'initialize("ray")' if settings.mode == "ray" else "initialize(simulate=True)"
        raise UsageError(f'{needed} needs groups, such as groups=[DeviceGroup("model", ranks=4, device_type="cuda")]')


def _again(settings: Settings) -> Session:
    world = current_world()
    if world.worker_of is not None:  # a module of the user's that is imported in a worker calls it, too
        return Session(world)
    if settings != world.settings:
        fields = (name for name in Settings.__slots__ if getattr(settings, name) != getattr(world.settings, name))
        raise UsageError(
            f"initialize() was called before with other arguments ({', '.join(fields)}); call shutdown() in between"
        )
    return Session(world)


def _local(settings: Settings) -> World:
    size, rank, local_rank = (1, 0, 0) if settings.simulate else ranks_of_environment()
    platform = detected_platform()
    groups = settings.groups or settled_groups([DeviceGroup("default", size, platform.name)])
    world = World(settings, groups, rank=rank, world_size=size)
    mesh = settings.global_device_mesh
    if mesh is not None and mesh.world_size != size and not settings.simulate:
        raise UsageError(f"initialize(): global_device_mesh={mesh} is for {mesh.world_size} process(es), not {size}")
    seed = world.seed(rank, world.default_mesh(size))
    if seed is not None:
        seeds.seed_everything(seed, full_determinism=settings.full_determinism)
    if platform.name != "cpu":
        seeds.on_import("torch", lambda torch: platform.bind(local_rank))
    how = "simulated in this process" if settings.simulate else f"{size} process(es)"
    logger.info("infra: %s, groups %s", how, ", ".join(group.name for group in groups))
    return world


def _on_ray(settings: Settings) -> World:
    from turnout.infra.ray.resource_manager import ResourceManager

    groups = settings.groups or ()
    manager = ResourceManager(
        groups, settings.nproc_per_node, settings.ncpu_proc_per_node, settings.placement_timeout_s
    )
    world = World(settings, groups, cluster=manager.map)
    world.on_close(manager.close)
    world.on_close(manager.map.close)
    if settings.seed is not None:
        seeds.seed_everything(settings.seed, full_determinism=settings.full_determinism)
    logger.info("infra: on Ray, groups %s", ", ".join(group.name for group in groups))
    return world
