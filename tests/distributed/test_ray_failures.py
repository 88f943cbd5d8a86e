"""Ranks that die, cannot start or cannot be sent their work, on the Ray track: told as what they are, and soon."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import turnout
from tests.distributed import within
from tests.distributed.on_ray import assert_clean, failure_of, fit
from tests.distributed.ranks import program, text_of
from tests.distributed.within import rank
from turnout import Checkpoint, FailureConfig, ScalingConfig
from turnout.collective import barrier

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_killed_rank_is_told_with_ray_s_word_its_last_report_and_its_last_lines(tmp_path: Path) -> None:
    def train() -> None:
        sys.stdout.write(f"the last line of {rank()}\n")
        turnout.report({"step": 0})
        if rank() == 1:
            sys.stdout.write("its very last\n")
            within.killed()
        barrier()  # waits

    text = failure_of(train, tmp_path)
    assert "  its very last\n" in text
    assert "WorkerGroupError: rank 1 (pid " in text
    assert "was killed, as by SIGKILL (out of memory?), or has left by os._exit. Ray says: " in text
    assert "Worker exit type: SYSTEM_ERROR" in text
    assert "last seen in report #1" in text
    assert "reports made: 1" in text
    assert "the last line of 1" in text


@pytest.mark.parametrize("leave", [within.left, within.left_as_if_well])
def test_a_rank_that_leaves_by_os_exit_has_died(leave: object, tmp_path: Path) -> None:
    def train() -> None:
        barrier()
        if rank() == 1:
            leave()  # type: ignore[operator]
        barrier()  # waits

    assert "or has left by os._exit" in failure_of(train, tmp_path)


def test_a_crash_is_told_by_its_signal_and_its_line(tmp_path: Path) -> None:
    def train() -> None:
        import ctypes

        barrier()
        if rank() == 1:
            ctypes.string_at(0)
        barrier()  # waits

    text = failure_of(train, tmp_path)
    assert "was killed by SIGSEGV; it was in string_at (" in text


def test_a_killed_rank_is_retried_from_the_last_commit(tmp_path: Path) -> None:
    def train() -> list[int]:
        checkpoint, steps = turnout.get_checkpoint(), []
        start = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                start = int(Path(folder, "step").read_text()) + 1
        for step in range(start, 4):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "step").write_text(str(step))
                turnout.report({"step": step}, Checkpoint.from_directory(folder))
            if step == 1 and start == 0 and rank() == 1:
                within.killed()
            steps.append(step)
        return steps

    result = fit(train, tmp_path, failure_config=FailureConfig(max_failures=1))
    assert result.return_values == [[2, 3], [2, 3]]
    assert len(result.metrics_dataframe) == 4


def test_a_checkpoint_whose_report_has_returned_survives_a_kill_on_the_next_line(tmp_path: Path) -> None:
    def train(config: int) -> list[int]:
        checkpoint, start = turnout.get_checkpoint(), 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                assert sorted(os.listdir(folder)) == [".turnout.json", "0", "1"]
                start = int(Path(folder, "0").read_text()) + 1
                assert Path(folder, "1").read_text() == str(start - 1)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, str(rank())).write_text(str(start))
            turnout.report({"step": start}, Checkpoint.from_directory(folder))
            if start < config and rank() == start % 2:
                within.killed()
        return [start]

    result = fit(train, tmp_path, config=3, failure_config=FailureConfig(max_failures=3))
    assert result.return_values == [[3], [3]]
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3]


def test_a_rank_that_dies_is_the_cause_and_not_what_its_peers_raise_of_it(tmp_path: Path) -> None:
    def train() -> None:
        import torch
        import torch.distributed as dist

        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        if rank() == 1:
            within.killed()
        dist.all_reduce(torch.ones(1))

    from turnout.torch import TorchTrainer

    with pytest.raises(turnout.WorkerGroupError) as caught:
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, controller="ray"),
            run_config=turnout.RunConfig(storage_path=str(tmp_path)),
        ).fit()
    assert str(caught.value).startswith("rank 1 (pid ")


@pytest.mark.parametrize("stays", ["time.sleep(1000)", "sum(range(10**12))", "os.kill(os.getpid(), 19)"])
def test_a_rank_that_does_not_unwind_is_killed(stays: str, tmp_path: Path) -> None:
    def train() -> None:
        barrier()
        if rank() == 1:
            raise LookupError("the cause")
        exec(f"import os, time; {stays}")

    text = failure_of(train, tmp_path, within_s=20)
    assert "LookupError: the cause" in text
    assert_clean()


def test_a_lock_that_is_captured_is_named_before_any_worker_starts(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(
        turnout.UsageError, match=r"the variable 'lock' that .* captures, a _thread.lock, cannot be sent"
    ):
        fit(lambda: lock, tmp_path)


def test_a_module_that_a_worker_lacks_is_named_with_node_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def f():\n    return 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        import only_here  # type: ignore[import-not-found]

        (tmp_path / "only_here.py").unlink()
        with pytest.raises(ModuleNotFoundError) as caught:
            fit(lambda: only_here.f(), tmp_path / "runs")
        del sys.modules["only_here"]
    text = str(caught.value)
    assert "No module named 'only_here' on node " in text
    assert "worker_runtime_env" in text
    assert isinstance(caught.value, turnout.WorkerGroupError)


def test_a_helper_beside_the_script_is_found_from_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    (folder / "helpers").mkdir(parents=True)
    (folder / "helpers" / "mod.py").write_text("def f():\n    return 41\n")
    source = """
    import logging, os, ray
    ray.init(address="local", include_dashboard=False, num_cpus=2, logging_level=logging.ERROR)
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig
    from helpers.mod import f

    class Of:
        value = 1

    def train():
        return f() + Of.value, os.getcwd()

    print("values", DataParallelTrainer(
        train, scaling_config=ScalingConfig(2), run_config=RunConfig(storage_path="runs")
    ).fit().return_values, flush=True)
    """
    with program(folder, source, cwd=tmp_path) as driver:
        assert driver.wait(50) == 0, driver.text
    assert f"values [(42, '{tmp_path}'), (42, '{tmp_path}')]" in driver.text


def test_a_runtime_environment_that_cannot_be_made_is_a_controller_error_with_the_cause(tmp_path: Path) -> None:
    text = failure_of(
        rank,
        tmp_path,
        worker_runtime_env={"working_dir": (tmp_path / "none.zip").as_uri()},
        failure_config=FailureConfig(controller_failure_limit=0),
    )
    assert "ControllerError" in text
    assert "none.zip" in text


def test_a_start_that_cannot_succeed_is_tried_twice_and_not_for_ever(tmp_path: Path) -> None:
    text = failure_of(rank, tmp_path, worker_runtime_env={"working_dir": (tmp_path / "none.zip").as_uri()})
    assert "none.zip" in text
    assert "it is not tried again, though FailureConfig.controller_failure_limit=-1: it has failed twice" in text
    assert_clean()


def test_a_worker_whose_constructor_raises_is_tried_twice_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from turnout.controllers.ray.actor import RankActor
    from turnout.controllers.ray.group import Group

    class Broken(RankActor):
        def __init__(self, *_: object) -> None:
            raise LookupError("the node lacks what it needs")

    monkeypatch.setattr(Group, "actor_class", staticmethod(lambda: ray.remote(Broken)))
    text = failure_of(rank, tmp_path)
    assert "could not be started" in text
    assert "LookupError: the node lacks what it needs" in text
    assert "it has failed twice" in text


def test_a_runtime_environment_reaches_the_workers(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "sent_along.py").write_text("VALUE = 7\n")

    def train() -> tuple[str, int]:
        import sent_along  # type: ignore[import-not-found]

        return os.environ["OF_THE_ENVIRONMENT"], sent_along.VALUE

    environment = {"env_vars": {"OF_THE_ENVIRONMENT": "yes"}, "working_dir": str(folder)}
    assert fit(train, tmp_path / "runs", worker_runtime_env=environment).return_values == [("yes", 7)] * 2


def test_a_runtime_environment_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(turnout.UsageError, match=r"RunConfig.worker_runtime_env=.* must be an existing directory"):
        fit(rank, tmp_path, worker_runtime_env={"working_dir": str(tmp_path / "none")})


@pytest.mark.parametrize("code", [0, 3])
def test_sys_exit_means_what_it_does_elsewhere(code: int, tmp_path: Path) -> None:
    def train() -> None:
        sys.exit(code)

    if code == 0:
        assert fit(train, tmp_path).return_values == [None, None]
    else:
        assert "the train function ended in sys.exit(3)" in failure_of(train, tmp_path)


@pytest.mark.parametrize(
    ("raises", "told"),
    [
        (within._raise_two_arguments, "TwoArgumentsError: 7: odd"),
        (within._raise_locked, "it holds a lock"),
        (within._raise_refuses, "RefusesToTravelError: stays here"),
    ],
)
def test_an_exception_that_cannot_be_rebuilt_is_told_by_name_and_text(
    raises: object, told: str, tmp_path: Path
) -> None:
    assert told in failure_of(raises, tmp_path)  # type: ignore[arg-type]


def test_ranks_that_do_different_things_are_told_apart(tmp_path: Path) -> None:
    def train() -> None:
        if rank() == 0:
            barrier()
        else:
            turnout.report({"a": 1})

    text = failure_of(train, tmp_path)
    assert "rank 0 is in barrier #1" in text
    assert "rank 1 is in report #1" in text


def test_a_stall_is_told_with_where_the_missing_rank_is(tmp_path: Path) -> None:
    def train() -> None:
        if rank() == 1:
            while True:
                time.sleep(0.1)  # here
        barrier()  # waits

    with pytest.raises(turnout.TrainingFailedError) as caught:
        fit(train, tmp_path, stall_timeout_s=1.0, stall_action="fail")
    text = text_of(caught.value)
    assert "barrier #1 has waited 1 s for rank(s) 1" in text
    assert "rank 0 waits in barrier #1" in text
    assert "rank 1 is in train (" in text
