"""`remote_class`: what makes a class one whose objects are built on the workers of a group."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from turnout.checks import check_choice, check_integer, refused
from turnout.errors import UsageError
from turnout.infra.calls import Call
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.handles import PLAIN, Handle, has_lazy, peers_of, with_values
from turnout.infra.in_process import InPlace, Simulated, copied
from turnout.infra.methods import EXECUTES, HANDLE
from turnout.infra.proxies import become_proxy, plan
from turnout.infra.remote_errors import caller_line
from turnout.infra.seeds import RandomState
from turnout.infra.telling import tell
from turnout.infra.world import Built, current_world

__all__ = ["new_instance", "on_group", "remote_class"]

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


def remote_class(execute: str = "all", *, lazy_collect: bool | None = None, prefetch: int = 0) -> Callable[[K], K]:
    """Make a class one whose objects can be built on a group: ``Model(..., remote_group="model")``.

    Without ``remote_group``, or where `initialize` has set up no such groups, the object is built in this process. On a
    group there is one worker for each of its ranks, or devices for several, and the object that is built stands for
    all of them: its remote functions are called there, and it has nothing else. A parameter of the constructor that is
    annotated as a `DeviceMesh` is given one over all workers, unless the call gives one.

    Args:
        execute: workers on "all" ranks, on the "first", or, built by a worker of another group, on its "peer"s.
        lazy_collect: False has its remote functions wait and return their results themselves.
        prefetch: items that iterators over objects of it are ahead of their reader.

    Raises:
        UsageError: an argument cannot be meant, or the class cannot be one.

    Example:
        >>> @remote_class()
        ... class Model:
        ...     def __init__(self, width: int, device_mesh: DeviceMesh = None):
        ...         self.width = width
        >>> Model(128).width
        128
    """
    check_choice("remote_class(): execute", execute, EXECUTES)
    check_integer("remote_class(): prefetch", prefetch, at_least=0, remedy="takes how many items, from 0 on")

    def decorate(kind: K) -> K:
        if not isinstance(kind, type):
            raise refused("@remote_class", kind, "decorates a class")
        if kind.__dictoffset__ == 0:
            raise UsageError(
                f"@remote_class on {kind.__name__}: its objects have no __dict__; leave out __slots__, or give it one"
            )
        init: Callable[..., None] = cast("Any", kind).__init__

        @functools.wraps(init)
        def build(self: Any, *args: Any, **kwargs: Any) -> None:
            if HANDLE in self.__dict__:  # a worker's own, or the constructor of a class that derives from this one
                init(self, *args, **kwargs)
                return
            _Building(self, init, execute, lazy_collect, prefetch).run(args, kwargs)

        cast("Any", kind).__init__ = build
        if not hasattr(kind, "plan"):
            cast("Any", kind).plan = plan
        return kind

    return decorate


def on_group(kind: Callable[P, R], remote_group: str) -> Callable[P, R]:
    """A class to be built on a group, for programs whose types are checked: ``on_group(Model, "model")(128)``.

    Args:
        kind: a `remote_class`.
        remote_group: the group's name.
    """

    def build(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast("Any", kind)(*args, remote_group=remote_group, **kwargs)  # type: ignore[no-any-return]

    return build


class _Building:
    """One object on its way.

    Args:
        instance: that is built.
        init: its constructor as it was written.
        execute: as in `remote_class`.
        lazy_collect: as in `remote_class`.
        prefetch: as in `remote_class`.
    """

    def __init__(
        self, instance: Any, init: Callable[..., None], execute: str, lazy_collect: bool | None, prefetch: int
    ) -> None:
        self.instance = instance
        self.kind: type = type(instance)
        self.init = init
        self.execute = execute
        self.lazy_collect = lazy_collect
        self.prefetch = prefetch
        self.world = current_world()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        remote_group = kwargs.pop("remote_group", None)
        kwargs.pop("instance_id", None)
        world = self.world
        if remote_group is not None and (world.settings.groups is not None or world.worker_of is not None):
            world.group(remote_group)
        is_own = remote_group is not None and remote_group == world.caller.group
        is_remote = remote_group is not None and not is_own and (world.settings.simulate or world.cluster is not None)
        call = Call("__init__", f"{self.kind.__name__}.__init__", remote_group if is_remote else None, caller_line())
        try:
            if is_remote:
                self._build_remote(remote_group, call, args, kwargs)
            else:
                self._build_here(remote_group, is_own, args, kwargs)
        except Exception as error:
            world.tell(call, error)
            raise

    # -- in this process

    def _build_here(
        self, remote_group: str | None, is_own: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        world = self.world
        group = None
        if is_own:
            caller = world.caller
            workers = InPlace(caller.world_size, caller.rank, is_whole=True)
        elif world.cluster is None and world.worker_of is None and not world.settings.simulate:
            workers = InPlace(world.world_size, world.rank, is_whole=world.settings.local_args == "mine")
            group = world.groups[0].name
        else:
            workers = InPlace()
        may_replace = remote_group is not None and not is_own
        args, kwargs, mesh = self._meshed(args, kwargs, workers.size, remote_group or "this process", may_replace)
        handle = Handle(self.kind, workers, mesh, None, lazy_collect=self.lazy_collect, prefetch=self.prefetch)
        if has_lazy((args, kwargs)):
            args, kwargs = with_values((args, kwargs))
        self.instance.__dict__[HANDLE] = handle
        workers.num_running += 1
        try:
            self.init(self.instance, *args, **kwargs)
        finally:
            workers.num_running -= 1
        if group is not None:
            world.note_built(group, Built(class_name=self.kind.__name__, mesh=mesh, num_workers=workers.size))

    # -- on a group

    def _build_remote(self, name: str, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        world = self.world
        members = self._members(name)
        args, kwargs, mesh = self._meshed(args, kwargs, len(members), f"group {name!r}", may_replace=False)
        if has_lazy((args, kwargs)):
            args, kwargs = with_values((args, kwargs))
        self._check_arguments(args, kwargs)
        if world.settings.simulate:
            workers: Any = self._simulated(call, len(members), mesh, args, kwargs)
        else:
            workers = world.cluster.workers_on(world, name, members, mesh, self.kind, args, kwargs, call)
        handle = Handle(self.kind, workers, mesh, name, lazy_collect=self.lazy_collect, prefetch=self.prefetch)
        become_proxy(self.instance, handle)
        world.note_built(name, Built(class_name=self.kind.__name__, mesh=mesh, num_workers=len(members)))

    def _members(self, name: str) -> range:
        """The group's workers that get an instance."""
        num_workers = self.world.group(name).num_workers
        if self.execute == "first":
            return range(1)
        caller = self.world.caller
        if self.execute == "peer" and caller.group is not None:
            return peers_of(caller.rank, caller.world_size, num_workers)
        return range(num_workers)

    def _simulated(
        self, call: Call, size: int, mesh: DeviceMesh, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Simulated:
        process_seed = self.world.settings.seed
        states = [RandomState(self.world.seed(rank, mesh), process_seed) for rank in range(size)]
        return Simulated(
            size, call, lambda rank: new_instance(self.kind, self.init, copied(args), copied(kwargs)), states
        )

    def _check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            inspect.signature(self.init).bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.kind.__name__}(): {error}") from None

    # -- meshes

    def _meshed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], size: int, where: str, may_replace: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any], DeviceMesh]:
        """The arguments with the mesh that holds, and that mesh.

        Raises:
            UsageError: the one that was given is for another number of workers.
        """
        given = next((each for each in (*args, *kwargs.values()) if isinstance(each, DeviceMesh)), None)
        if given is None:
            mesh = self.world.default_mesh(size)
            name = _mesh_parameter(self.init)
            if name is not None and not self._is_given(name, args, kwargs):
                kwargs = {**kwargs, name: mesh}
            return args, kwargs, mesh
        if given.world_size == size and sorted(given.ranks) == list(range(size)):
            return args, kwargs, given
        if given.world_size == size:
            raise UsageError(
                f"{self.kind.__name__}(): {given} has the ranks {sorted(given.ranks)}; the workers of a group are "
                f"numbered from 0 to {size - 1}, whatever ranks the group has in the program"
            )
        if not may_replace:
            raise UsageError(
                f"{self.kind.__name__}(): {given} is for {given.world_size} worker(s), and {where} has {size}"
            )
        mesh = self.world.default_mesh(size)
        told = f"{given} is for {given.world_size} workers; here it is built in {size} process(es), with {mesh}"
        tell(logger, logging.WARNING, f"{self.kind.__name__}(): {told}")
        args = tuple(mesh if each is given else each for each in args)
        return args, {name: mesh if each is given else each for name, each in kwargs.items()}, mesh

    def _is_given(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            return name in inspect.signature(self.init).bind_partial(None, *args, **kwargs).arguments
        except TypeError:  # which the constructor says better
            return True


def new_instance(kind: type, init: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An instance of a worker's own, whose methods are what they are.

    Args:
        kind: its class.
        init: the constructor, as it was written or as it is now.
        args: positional.
        kwargs: by keyword.
    """
    new: Any = kind.__new__
    instance = new(kind) if new is object.__new__ else new(kind, *args, **kwargs)
    instance.__dict__[HANDLE] = PLAIN
    init(instance, *args, **kwargs)
    return instance


def _mesh_parameter(init: Callable[..., None]) -> str | None:
    """The parameter that is annotated as a mesh."""
    try:
        parameters = inspect.signature(init).parameters
    except (TypeError, ValueError):  # object's own
        return None
    for name, parameter in parameters.items():
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        if "DeviceMesh" in text or "DeviceMesh" in str(annotation):
            return name
    return None
