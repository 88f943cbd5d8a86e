"""Programs of every shape train on forked ranks: no main guard, standard input, `-c`, and what `__main__` defines."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.distributed.ranks import ROOT, command, fit, program
from turnout.collective import barrier

PROGRAM = """
    import os
    from dataclasses import dataclass
    import turnout
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig

    print("the program runs in", os.getpid())

    @dataclass
    class Model:
        weights: list

    class DivergedError(Exception):
        def __init__(self, step, loss):
            super().__init__(f"loss {loss} at step {step}")
            self.model = Model([loss])

    def step(model):
        model.weights.append(turnout.get_context().get_world_rank())
        return model

    def train(config):
        if config["fails"]:
            raise DivergedError(3, 1.5)
        turnout.report({"loss": 0.5})
        return step(Model([config["first"]])), __name__

    def fit(**config):
        return DataParallelTrainer(
            train,
            train_loop_config=config,
            scaling_config=ScalingConfig(2, controller="process"),
            run_config=RunConfig(storage_path="."),
        ).fit()

    result = fit(fails=False, first=7)
    assert result.return_values == [(Model([7, 0]), "__main__"), (Model([7, 1]), "__main__")], result.return_values
    assert all(type(model) is Model for model, _ in result.return_values)
    try:
        fit(fails=True, first=7)
    except DivergedError as error:
        assert isinstance(error, turnout.WorkerGroupError)
        assert type(error.model) is Model and error.model == Model([1.5]), error.model
        assert str(error) == "loss 1.5 at step 3"
    print("all is well")
"""


@pytest.mark.parametrize("way", ["script", "standard input", "-c", "-m", "exec"])
def test_a_program_without_a_main_guard_trains_and_gets_its_own_classes_back(way: str, tmp_path: Path) -> None:
    source = textwrap.dedent(PROGRAM)
    script = tmp_path / "script.py"
    script.write_text(source)
    shell = tmp_path / "shell.py"
    shell.write_text("import __main__; exec(open('script.py').read(), vars(__main__))")  # as a notebook's kernel does
    words = {
        "script": [str(script)],
        "standard input": ["-"],
        "-c": ["-c", source],
        "-m": ["-m", "script"],
        "exec": [str(shell)],
    }[way]
    with (
        script.open() as file,
        command(tmp_path, [sys.executable, "-W", "error", *words], stdin=file if words == ["-"] else None) as driver,
    ):
        assert driver.wait() == 0, driver.text
    assert "all is well" in driver.text
    assert driver.text.count("the program runs in") == 1
    assert not driver.alive()


def test_a_rank_may_have_children_of_every_kind_and_they_end_with_it(tmp_path: Path) -> None:
    source = """
        import multiprocessing, os, subprocess, sys, time
        from turnout import DataParallelTrainer, RunConfig, ScalingConfig
        from turnout.collective import barrier

        def square(number):
            return number * number

        def work(queue):
            queue.put(os.getppid())

        def train():
            values = []
            for method in ("fork", "spawn"):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                child = context.Process(target=print if method == "spawn" else work, args=(queue,))
                child.start()
                if method == "fork":
                    values.append(queue.get(timeout=20) == os.getpid())
                child.join(20)
                values.append(child.exitcode)
            with multiprocessing.get_context("fork").Pool(2) as pool:
                values.append(pool.map(square, range(4)))
            values.append(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True).stdout)
            for method in ("fork", "spawn"):  # these are left behind
                multiprocessing.get_context(method).Process(target=time.sleep, args=(1000,), daemon=True).start()
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True).start()
            return values

        result = DataParallelTrainer(
            train, scaling_config=ScalingConfig(2, controller="process"), run_config=RunConfig(storage_path=".")
        ).fit()
        assert result.return_values == [[True, 0, 0, [0, 1, 4, 9], b"42\\n"]] * 2, result.return_values
        print("all is well", flush=True)
        sys.stdin.read()
    """
    with program(tmp_path, source, stdin=subprocess.PIPE) as driver:
        driver.wait_for("all is well")
        assert len([each for each in driver.alive() if "sleep" in " ".join(each.cmdline())]) == 0
        assert len(driver.alive()) == 2  # the program, and its server
        driver.process.communicate()
        assert driver.wait() == 0, driver.text


def test_ranks_run_the_drivers_own_copy_of_turnout(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "turnout", tmp_path / "copy" / "turnout")
    source = """
        import sys
        sys.path.insert(0, "copy")
        import turnout
        from turnout import DataParallelTrainer, RunConfig, ScalingConfig

        values = DataParallelTrainer(
            lambda: turnout.__file__,
            scaling_config=ScalingConfig(2, controller="process"),
            run_config=RunConfig(storage_path="."),
        ).fit().return_values
        assert "copy" in turnout.__file__
        assert values == [turnout.__file__] * 2, values
    """
    with program(tmp_path, source) as driver:
        assert driver.wait() == 0, driver.text


def test_a_thread_that_a_rank_leaves_behind_does_not_hold_it_up(tmp_path: Path) -> None:
    def train() -> int:
        import threading

        threading.Thread(target=threading.Event().wait).start()
        return 1

    assert fit(train, tmp_path).return_values == [1, 1]


def test_what_a_rank_registers_for_its_end_is_run(tmp_path: Path) -> None:
    def train() -> None:
        import atexit

        atexit.register((tmp_path / f"ended-{id(tmp_path)}").touch)
        barrier()

    fit(train, tmp_path, num_workers=1)
    assert [each.name for each in tmp_path.glob("ended-*")]
