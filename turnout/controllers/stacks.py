"""Where ranks are, for people: the stacks that `faulthandler` writes, cut to what matters and merged over ranks."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ANSWERING", "Place", "is_users", "merged", "where_of"]

ANSWERING = "answer_in_place_of_faulthandler"
"""The function in which a rank answers where `faulthandler` does not."""

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_OURS = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
_ENTRY = os.path.join(_OURS, "runtime", "worker.py")  # calls the train function
_CONTRACT = os.path.join(_OURS, "testing", "contract")  # its train functions stand for a user's
_INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NOT_THE_USERS = (_OURS, *(os.path.realpath(path) + os.sep for path in _INSTALLED))


class Place(NamedTuple):
    """Where a rank is.

    Args:
        what: what it does there, to follow its name: ``"is in step (train.py:12)"``.
        line: the user's, as ``"file:line"``; empty if it is not known.
        stack: of the thread that runs its train function, innermost call first.
    """

    what: str
    line: str = ""
    stack: str = ""


def where_of(dump: str) -> Place:
    """What a rank is doing, from its dump.

    Args:
        dump: as `faulthandler` writes it, all threads; the main thread is the last.
    """
    frames = _own_thread(dump)
    if frames and frames[0][2] == ANSWERING:
        del frames[0]  # the handler that answers is where the question found the rank, and not what it does
    if not frames:
        return Place("does not answer (is it stopped?)")
    innermost = frames[0]
    users = next((frame for frame in frames if is_users(frame[0])), innermost)
    # Under torchrun the program that called `fit()` stands below the train function.
    entry = next((index for index, (file, _, _) in enumerate(frames) if _is_entry(file)), None)
    frames = frames[: entry or None]
    while len(frames) > 1 and _leads_to_the_user(frames[-1][0]):
        frames.pop()
    stack = "\n".join(f"    {file}:{line} in {function}" for file, line, function in frames)
    line = f"{users[0]}:{users[1]}"
    return Place(f"is in {innermost[2]} ({line})", line, stack)


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether code of this file is the user's own, and not Turnout's, Python's or an installed package's."""
    path = os.path.realpath(file)
    return not (file.startswith("<frozen ") or path.startswith(_NOT_THE_USERS)) or path.startswith(_CONTRACT)


def merged(places: Mapping[int, Place]) -> str:
    """One line that groups the ranks by where they are, and under it the stack of each group."""
    groups: dict[Place, list[int]] = {}
    for rank, place in sorted(places.items()):
        groups.setdefault(place, []).append(rank)
    line = " | ".join(f"{_named(ranks)} {_of_several(place.what, ranks)}" for place, ranks in groups.items())
    stacks = [f"  {_named(ranks)}:\n{place.stack}" for place, ranks in groups.items() if place.stack]
    return "\n".join([line, *stacks])


def _leads_to_the_user(file: str) -> bool:
    return file == "<string>" or (os.path.realpath(file).startswith(_OURS) and not is_users(file))


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {','.join(map(str, ranks))}"


def _of_several(what: str, ranks: list[int]) -> str:
    verb, _, rest = what.partition(" ")
    plural = {"is": "are", "has": "have", "does": "do", "waits": "wait"}
    return f"{plural[verb] if len(ranks) > 1 else verb} {rest}"


def _own_thread(dump: str) -> list[tuple[str, str, str]]:
    """The frames of the thread that runs the train function: the main one, but where a controller has none."""
    threads: list[list[tuple[str, str, str]]] = [[]]
    for text in dump.splitlines():
        if "hread 0x" in text:
            threads.append([])
        elif (match := _FRAME.match(text)) is not None:
            threads[-1].append((match["file"], match["line"], match["function"]))
    return next((frames for frames in threads if any(_is_entry(file) for file, _, _ in frames)), threads[-1])


@functools.lru_cache(maxsize=4096)
def _is_entry(file: str) -> bool:
    return os.path.realpath(file) == _ENTRY
