"""What the tests of the process track share: a run in few words, an error as text, and programs that run drivers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import turnout
from turnout import DataParallelTrainer, Result, RunConfig, ScalingConfig

ROOT = Path(__file__).resolve().parents[2]


def fit(train_fn: Callable[..., Any], storage: Path, *, num_workers: int = 2, config: Any = None, **run: Any) -> Result:
    """Train on forked ranks."""
    return DataParallelTrainer(
        train_fn,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=num_workers, controller="process"),
        run_config=RunConfig(storage_path=str(storage), **run),
    ).fit()


def failure_of(train_fn: Callable[..., Any], storage: Path, *, within_s: float = 12.0, **arguments: Any) -> str:
    """The text that a user sees of a run that fails, which it must do in time."""
    started = time.monotonic()
    with pytest.raises(turnout.TrainingFailedError) as caught:
        fit(train_fn, storage, **arguments)
    assert time.monotonic() - started < within_s
    return text_of(caught.value)


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def line_of(function: Callable[..., Any], marker: str) -> str:
    """``"file:line"`` of the line of ``function`` that ends in the comment ``# marker``."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines, first) if line.rstrip().endswith(f"# {marker}"))
    return f"{inspect.getsourcefile(function)}:{number}"


def wait_until(is_so: Callable[[], object], what: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        time.sleep(0.01)


class Program:
    """A driver program of its own, and every process that comes of it.

    Args:
        process: of the driver.
        mark: a variable in the environment of all its processes.
        output: takes what it prints.
    """

    def __init__(self, process: subprocess.Popen[str], mark: str, output: Path) -> None:
        self.process = process
        self._mark = mark
        self._output = output

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(errors="replace")

    def wait_for(self, text: str, within_s: float = 20.0) -> None:
        """Return once it has printed ``text``."""
        wait_until(lambda: text in self.text or self.process.poll() is not None, f"{text!r} in:\n{self.text}", within_s)
        assert text in self.text, self.text

    def alive(self) -> list[psutil.Process]:
        """All its processes that live, the driver among them."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("TEST_MARK") == self._mark:
                    found.append(process)
        return found

    def wait(self, within_s: float = 30.0) -> int:
        """Its exit status."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program did not end in {within_s:g} s:\n{self.text}") from None


@contextmanager
def program(folder: Path, source: str, *arguments: str, **options: Any) -> Iterator[Program]:
    """Run ``source`` as a script ``driver.py`` in ``folder``; nothing of it is alive after the block."""
    script = folder / "driver.py"
    script.write_text(textwrap.dedent(source))
    with command(folder, [sys.executable, "-u", str(script), *arguments], **options) as running:
        yield running


@contextmanager
def command(folder: Path, words: list[str], **options: Any) -> Iterator[Program]:
    """Run a program in ``folder``; nothing of it is alive after the block."""
    mark, output = uuid.uuid4().hex, folder / "output.txt"
    environment = {**os.environ, "TEST_MARK": mark, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    with output.open("w") as file:
        process = subprocess.Popen(
            words, cwd=options.pop("cwd", folder), env=environment, stdout=file, stderr=file, text=True, **options
        )
    running = Program(process, mark, output)
    try:
        yield running
    finally:
        for each in running.alive():
            with suppress(psutil.Error):
                each.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
