"""Seeds of Python's, numpy's and torch's generators, also of those packages that are imported later.

Neither numpy nor torch is imported for it. Ranks that take turns in one process have generators of their own: a
`RandomState` is what is put in the place of the process's while a rank has its turn.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from turnout.checks import check_choice, check_integer, refused
from turnout.infra import torch_state

__all__ = ["SEED_MODES", "RandomState", "check_seed", "forget_imports", "on_import", "seed_everything", "seed_of"]

SEED_MODES = ("same", "per_rank", "per_data_rank")
_LARGEST = 2**32 - 1  # numpy's


def check_seed(seed: int | None, seed_mode: str) -> None:
    """Refuse what numpy cannot take, and modes that there are not.

    Raises:
        UsageError: one cannot be meant.
    """
    check_choice("initialize(): seed_mode", seed_mode, SEED_MODES)
    if seed is not None:
        remedy = "takes a whole number from 0 to 2**32 - 1, or None to leave all generators alone"
        check_integer("initialize(): seed", seed, at_least=0, remedy=remedy)
        if seed > _LARGEST:
            raise refused("initialize(): seed", seed, remedy)


def seed_of(seed: int, seed_mode: str, rank: int, data_rank: int | None) -> int:
    """The seed of one rank."""
    more = {"same": 0, "per_rank": rank, "per_data_rank": data_rank or 0}[seed_mode]
    return (seed + more) % (_LARGEST + 1)


def seed_everything(seed: int, *, full_determinism: bool = False) -> None:
    """Seed every generator of this process, and choose deterministic kernels if asked.

    Args:
        seed: of all of them.
        full_determinism: have torch choose deterministic algorithms, too, and warn where there is none.
    """
    random.seed(seed)
    on_import("numpy", lambda numpy: numpy.random.seed(seed))
    on_import("torch", lambda torch: torch.manual_seed(seed))
    if full_determinism:
        on_import("torch", lambda torch: torch_state.be_deterministic())


def on_import(name: str, then: Callable[[ModuleType], object]) -> None:
    """Call something with a module: now if it is there, else right after it is imported.

    What the same code had still to do with it is forgotten.

    Args:
        name: of the module.
        then: is called with it.
    """
    _Waiting.forget(name, then)
    module = sys.modules.get(name)
    if module is not None and not _is_being_imported(module):
        then(module)
    else:
        _Waiting.add(name, then)


def forget_imports() -> None:
    """What waits for a module to be imported waits no more."""
    _Waiting.forget_all()


class RandomState:
    """The generators of one rank, kept while others have their turn.

    Args:
        seed: they begin with; None leaves the process's own in their place.
        process_seed: of the process's own, for a package that is first imported in a rank's turn.
    """

    def __init__(self, seed: int | None, process_seed: int | None = None) -> None:
        self._seed = seed
        self._process_seed = process_seed
        self._states: dict[str, Any] = {}

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Draw from this rank's generators for the length of the block."""
        if self._seed is None:
            yield
            return
        seed, process = self._seed, self._process_seed
        outer = {name: get() for name, (get, _) in _generators()}
        absent = [name for name in ("numpy", "torch") if name not in outer]
        for name in absent:
            on_import(name, lambda module: _seed_one(module.__name__, seed))
        for name, (_, put) in _generators():
            if name in self._states:
                put(self._states[name])
            else:
                _seed_one(name, self._seed)
        try:
            yield
        finally:
            self._states = {name: get() for name, (get, _) in _generators()}
            for name in absent:
                on_import(name, lambda module: None if process is None else _seed_one(module.__name__, process))
            for name, (_, put) in _generators():
                if name in outer:
                    put(outer[name])


def _generators() -> Iterator[tuple[str, tuple[Callable[[], Any], Callable[[Any], object]]]]:
    """How the state of each generator that is loaded is read and written."""
    yield "random", (random.getstate, random.setstate)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        yield "numpy", (numpy.random.get_state, numpy.random.set_state)
    if torch is not None:
        yield "torch", (torch.get_rng_state, torch.set_rng_state)


def _seed_one(name: str, seed: int) -> None:
    if name == "random":
        random.seed(seed)
    elif name == "numpy":
        sys.modules["numpy"].random.seed(seed)
    else:
        sys.modules["torch"].manual_seed(seed)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds a module as everyone else does, and has what waits for it called once it is there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Callable[[ModuleType], object]] = []

    @classmethod
    def add(cls, name: str, then: Callable[[ModuleType], object]) -> None:
        finder = next((each for each in sys.meta_path if isinstance(each, cls) and each.name == name), None)
        if finder is None:
            finder = cls(name)
            sys.meta_path.insert(0, finder)
        finder.calls.append(then)

    @classmethod
    def forget(cls, name: str, then: Callable[[ModuleType], object]) -> None:
        """Those of the same code: a later seed takes an earlier one's place."""
        code = getattr(then, "__code__", None)
        for finder in sys.meta_path:
            if isinstance(finder, cls) and finder.name == name:
                finder.calls = [each for each in finder.calls if getattr(each, "__code__", None) is not code]

    @classmethod
    def forget_all(cls) -> None:
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, cls)]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None  # Any: its method is replaced
        if spec is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            for call in self.calls:
                call(module)

        loader.exec_module = execute_and_tell
        return spec
