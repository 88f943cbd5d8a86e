"""Odd requests, odd output and odd surroundings: each trains, or is refused early by its name."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.distributed.ranks import command, failure_of, fit, program, wait_until
from tests.distributed.within import rank
from turnout import DataParallelTrainer, RunConfig, ScalingConfig
from turnout.collective import barrier, broadcast_from_rank_zero

DRIVER = """
    import logging, os, sys
    import turnout
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig
    from turnout.collective import barrier

    def fit(train, num_workers=2, storage_path="runs"):
        return DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers, controller="process"),
            run_config=RunConfig(storage_path=storage_path),
        ).fit()
"""


@pytest.mark.parametrize("num_workers", [1, 16])
def test_one_rank_and_sixteen_train(num_workers: int, tmp_path: Path) -> None:
    def train() -> tuple[int, int, list[str]]:
        barrier()
        turnout.report({"rank": rank()})
        context = turnout.get_context()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "TURNOUT_WORKER")
        return context.get_world_rank(), context.get_world_size(), [os.environ[name] for name in names]

    size = str(num_workers)
    assert fit(train, tmp_path, num_workers=num_workers).return_values == [
        (each, num_workers, [str(each), size, str(each), size, "0", "1"]) for each in range(num_workers)
    ]


@pytest.mark.parametrize(
    ("scaling", "run", "named"),
    [
        ({"num_workers": 2, "resources_per_worker": {"CPU": 2}}, {}, "resources_per_worker"),
        ({"num_workers": (1, 2)}, {}, r"num_workers=\(1, 2\) \(elastic\)"),
        ({"num_workers": 2, "accelerator_type": "A100"}, {}, "accelerator_type"),
        ({"num_workers": 2}, {"worker_runtime_env": {"pip": []}}, "worker_runtime_env"),
    ],
)
def test_what_only_a_cluster_can_give_is_refused_by_its_name(
    scaling: dict[str, Any], run: dict[str, Any], named: str, tmp_path: Path
) -> None:
    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(controller="process", **scaling),
        run_config=RunConfig(storage_path=str(tmp_path), **run),
    )
    with pytest.raises(
        turnout.UnsupportedError, match=f"^{named}: the controller 'process' .* the controller 'ray' can"
    ):
        trainer.fit()


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists(), reason="it has a GPU")
def test_gpus_that_the_machine_does_not_have_are_refused_before_anything_starts(tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True, controller="process"),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(turnout.ResourceError, match="asks for 2 GPUs, one a rank, and this machine has 0"):
        trainer.fit()
    assert not list(tmp_path.iterdir())


def test_a_function_that_captures_fifty_megabytes_trains(tmp_path: Path) -> None:
    data = os.urandom(50 << 20)

    def train() -> int:
        return len(data)

    assert fit(train, tmp_path).return_values == [50 << 20] * 2


def test_output_of_every_kind_comes_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        import sys

        if rank() == 1:
            os.write(1, b"\xff\xfe\x00 binary\n")
            sys.stdout.write("x" * (10 << 20) + "\n")
            sys.stderr.write("an error line\n")
            os.system("echo from a child")
            sys.stdout.write("no newline at the end")

    fit(train, tmp_path)
    shown = capsys.readouterr().out
    assert "[rank 1] \ufffd\ufffd\x00 binary\n" in shown
    assert shown.count("x" * (10 << 20)) == 1
    assert "[rank 1] an error line\n" in shown
    assert "[rank 1] from a child\n" in shown
    assert shown.rstrip("\n").endswith("[rank 1] no newline at the end")
    assert shown.count("[rank 1]") == 5


def test_a_flood_from_a_child_that_stays_does_not_hold_up_the_end(tmp_path: Path) -> None:
    def train() -> None:
        subprocess.Popen("while true; do echo flood; done", shell=True, start_new_session=True)

    fit(train, tmp_path)


def test_what_a_rank_does_to_its_surroundings_stays_there(tmp_path: Path) -> None:
    def train() -> tuple[str, str]:
        os.chdir("/")
        os.environ["OF_THE_RANKS"] = "1"
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.umask(0o777)
        return os.getcwd(), os.environ["OF_THE_RANKS"]

    before = os.getcwd(), dict(os.environ), signal.getsignal(signal.SIGTERM)
    assert fit(train, tmp_path).return_values == [("/", "1")] * 2
    assert (os.getcwd(), dict(os.environ), signal.getsignal(signal.SIGTERM)) == before
    assert fit(os.getcwd, tmp_path).return_values == [os.getcwd()] * 2


def test_ranks_have_the_drivers_surroundings_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> tuple[str, str | None, str | None]:
        return os.getcwd(), os.environ.get("SET_LATER"), os.environ.get("MASTER_PORT")

    fit(train, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.setenv("MASTER_PORT", "1")  # another job's
    assert fit(train, tmp_path).return_values == [(str(tmp_path), "yes", None)] * 2


def test_a_warning_that_a_rank_logs_is_shown_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        logging.getLogger("users").warning("of rank %d", rank())

    fit(train, tmp_path)
    shown = capfd.readouterr().out
    assert sorted(shown.splitlines()) == ["[rank 0] of rank 0", "[rank 1] of rank 1"]


@pytest.mark.parametrize("end", ["sys.stdout = None", "sys.stdout.close()"])
def test_a_driver_without_a_standard_output_trains(end: str, tmp_path: Path) -> None:
    source = f"""
    def train():
        print("a line")
        turnout.report({{"step": 0}})
        return 7

    {end}
    open("values", "w").write(str(fit(train).return_values))
    os._exit(0)
    """
    with program(tmp_path, DRIVER + source) as driver:
        assert driver.wait() == 0, driver.text
    assert (tmp_path / "values").read_text() == "[7, 7]"


@pytest.mark.parametrize("streams", ["| true", "<&- >&- 2>&-", ">&-", "> /dev/full"])
def test_a_driver_whose_streams_lead_nowhere_trains(streams: str, tmp_path: Path) -> None:
    source = """
    def train():
        print("a line " * 10000)
        return 7

    open("values", "w").write(str(fit(train).return_values))
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(DRIVER + source))
    with command(tmp_path, ["bash", "-c", f"{sys.executable} program.py {streams}"]) as shell:
        shell.wait()
        assert (tmp_path / "values").read_text() == "[7, 7]", shell.text
        wait_until(lambda: not shell.alive(), "all to end", 2)


def test_a_working_directory_that_was_removed_is_no_hindrance(tmp_path: Path) -> None:
    source = """
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(os.getcwd())
    print(fit(lambda: 7, storage_path=sys.argv[1]).return_values)
    """
    with program(tmp_path, DRIVER + source, str(tmp_path)) as driver:
        assert driver.wait() == 0, driver.text
    assert "[7, 7]" in driver.text


def test_fit_within_a_rank_is_refused_in_the_train_function_and_works_in_a_program_of_its_own(tmp_path: Path) -> None:
    def nested() -> None:
        fit(rank, tmp_path / "inner")

    assert "fit() was called inside a train function" in failure_of(nested, tmp_path)
    source = """
    import subprocess

    def train():
        return subprocess.run(
            [sys.executable, sys.argv[0], "inner"], capture_output=True, text=True, check=True
        ).stdout

    if sys.argv[1:] == ["inner"]:
        print("values:", fit(lambda: os.environ["RANK"], storage_path=f"inner-{os.environ['RANK']}").return_values)
    else:
        print("outer:", fit(train).return_values)
    """
    with program(tmp_path, DRIVER + source) as driver:
        assert driver.wait() == 0, driver.text
        assert not driver.alive()
    assert driver.text.count("values: ['0', '1']") == 2


def test_many_reports_and_large_values_keep_their_order(tmp_path: Path) -> None:
    def train() -> int:
        for step in range(300):
            turnout.report({"step": step, "text": "x" * 10})
        return len(broadcast_from_rank_zero(os.urandom(20 << 20)))

    result = fit(train, tmp_path)
    assert result.return_values == [20 << 20] * 2
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == list(range(300))
