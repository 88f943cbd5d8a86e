"""Real runs under torchrun: what ranks are told, what is written once, and how a failing rank ends the others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from turnout import Result

_PRELUDE = """
import json, os, sys, tempfile, threading, time
import torch, torch.distributed as dist
import turnout, turnout.collective
from turnout import *
from turnout.torch import TorchTrainer

OUT = sys.argv[1]

def rank():
    return turnout.get_context().get_world_rank()

def fit(train_fn, **run):
    run_config = RunConfig(logging_config=LoggingConfig("WARNING"), **run)
    return TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0), run_config=run_config).fit()

def failure(train_fn, **run):
    try:
        fit(train_fn, **run)
    except Exception as error:
        return [type(error).__mro__[0].__name__, "\\n".join([str(error), *getattr(error, "__notes__", [])])]

def tell(**what):
    with open(f"{OUT}/told-{os.environ['RANK']}.json", "w") as file:
        json.dump(what, file)

def report_folder(metrics, **files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        turnout.report(metrics, Checkpoint(folder))
"""


def _write(folder: Path, body: str) -> Path:
    script = folder / "script.py"
    script.write_text(_PRELUDE + textwrap.dedent(body))
    return script


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}  # else torchrun says that it sets it


def torchrun(folder: Path, body: str, *options: str, nproc: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a script under torchrun, and make sure that none of its processes is left."""
    script = _write(folder, body)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc), *options]
    done = subprocess.run(
        [*command, str(script), str(folder)], capture_output=True, text=True, env=_environment(), timeout=55
    )
    assert not _left(script), done.stderr
    return done


def _left(script: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(script) in " ".join(process.info["cmdline"] or ()):
            found.append(f"{process.pid} {process.info['cmdline']}")
    return found


def told(folder: Path, num_ranks: int = 2) -> list[dict[str, Any]]:
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(num_ranks)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


_WHO = """
    def train():
        context = turnout.get_context()
        who = [context.get_world_size(), context.get_world_rank(), context.get_local_rank(), context.get_node_rank()]
        for step in range(2):
            report_folder({"step": step}, **{f"of-{rank()}": str(step), "same": "same"})
        total = torch.ones(1)
        dist.all_reduce(total)
        return [*who, int(total)]

    result = fit(train, name="who", storage_path=f"{OUT}/storage")
    tell(values=result.return_values, threads=[each.name for each in threading.enumerate()])
"""


def committed(folder: Path, name: str) -> list[str]:
    return sorted(path.parent.name for path in (folder / "storage" / name).glob("checkpoints/*/.turnout.json"))


def test_every_rank_is_told_the_same_and_the_run_is_written_once(tmp_path: Path) -> None:
    body = """
        variables = dict(os.environ)

        def train():
            turnout.report({"rank": rank(), "number": 0})
            report_folder({"rank": rank(), "number": 1}, **{f"of-{rank()}": "x", "same": "same"})
            turnout.collective.barrier()
            total = torch.ones(1) * (1 + rank())
            dist.all_reduce(total)
            context = turnout.get_context()
            return {
                "ranks": [context.get_world_size(), rank(), context.get_local_rank(), context.get_node_rank()],
                "from zero": turnout.collective.broadcast_from_rank_zero(f"from {rank()}"),
                "sum": total.item(),
                "name": context.get_experiment_name(),
                "port": os.environ["MASTER_PORT"],
                "reported": len(turnout.get_all_reported_checkpoints()),
            }

        def results(result):
            return [result.metrics, result.return_values, result.path, result.checkpoint and result.checkpoint.path]

        def returns_late():
            time.sleep(0.3 * rank())
            return f"of {rank()}"

        late = fit(returns_late).return_values
        memory = results(fit(train))
        stored = results(fit(train, storage_path=f"{OUT}/storage", callbacks=[]))
        dist.init_process_group("gloo")
        own = dist.group.WORLD
        again = results(fit(train, name="again", storage_path=f"{OUT}/storage"))
        is_left = dist.group.WORLD is own
        dist.destroy_process_group()
        last = fit(train).metrics["number"]
        tell(
            late=late, memory=memory, stored=stored, again=again, is_left=is_left, last=last,
            port=variables["MASTER_PORT"],
            threads=[each.name for each in threading.enumerate()],
            changed={k: os.environ.get(k) for k in {*os.environ, *variables} if os.environ.get(k) != variables.get(k)},
        )
    """
    done = torchrun(tmp_path, body)
    assert done.returncode == 0, done.stderr
    both = told(tmp_path)
    for rank, each in enumerate(both):
        assert each["late"] == [f"of {rank}"], "in memory each rank has its own result"
        metrics, values, path, _ = each["memory"]
        assert (metrics, path, len(values)) == ({"rank": rank, "number": 1}, None, 1)
        assert values[0]["ranks"] == [2, rank, rank, 0]
        assert (values[0]["from zero"], values[0]["sum"], values[0]["reported"]) == ("from 0", 3.0, 0)
        assert each["is_left"], "the user's own process group stands"
        assert each["last"] == 1
        assert each["threads"] == ["MainThread"]
        assert set(each["changed"]) <= {"TORCHINDUCTOR_CACHE_DIR"}
        assert values[0]["port"] == each["port"]
    assert both[0]["stored"] == both[1]["stored"], "with storage all ranks hold the same result"
    metrics, values, path, checkpoint = both[0]["stored"]
    assert metrics == {"rank": 0, "number": 1}
    assert [each["ranks"] for each in values] == [[2, 0, 0, 0], [2, 1, 1, 0]]
    assert [each["reported"] for each in values] == [1, 1]
    assert sorted(os.listdir(checkpoint)) == [".turnout.json", "of-0", "of-1", "same"]
    assert len(Result.from_path(path).metrics_dataframe) == 2
    assert values[0]["name"] == os.path.basename(path)


def test_two_nodes_are_one_run(tmp_path: Path) -> None:
    script, port = _write(tmp_path, _WHO), _free_port()
    agents = []
    for node in range(2):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)]
        command += ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
        agents.append(
            subprocess.Popen([*command, str(script), str(tmp_path)], stderr=subprocess.PIPE, env=_environment())
        )
    for agent in agents:
        _, errors = agent.communicate(timeout=55)
        assert agent.returncode == 0, errors.decode()
    assert not _left(script)
    expected = [[4, rank, rank % 2, rank // 2, 4] for rank in range(4)]
    assert [each["values"] for each in told(tmp_path, 4)] == [expected] * 4
    assert committed(tmp_path, "who") == ["checkpoint_000000", "checkpoint_000001"]


def test_four_processes_with_all_six_variables_are_two_nodes_of_two(tmp_path: Path) -> None:
    script, port = _write(tmp_path, _WHO), _free_port()
    variables = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank, local_rank in enumerate((0, 1, 1, 0)):
        own = {**_environment(), **variables, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
        processes.append(subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=own))
    assert [process.wait(55) for process in processes] == [0] * 4
    assert told(tmp_path, 4)[0]["values"][2] == [4, 2, 1, 1, 4]
    assert committed(tmp_path, "who") == ["checkpoint_000000", "checkpoint_000001"]


def test_what_goes_wrong_on_one_rank_is_told_on_all_with_the_first_cause_first(tmp_path: Path) -> None:
    body = """
        class NeedsTwo(Exception):
            def __init__(self, code, where):
                super().__init__(f"code {code} at {where}")

        def raises_beside_a_barrier_of_torch():
            if rank() == 1:
                raise ValueError("real cause")
            dist.barrier()

        def raises_what_cannot_be_rebuilt():
            if rank() == 1:
                raise NeedsTwo(7, "loader")
            turnout.collective.barrier()

        def skips_a_barrier():
            if rank() == 0:
                turnout.collective.barrier()
            turnout.report({"x": 1})

        def reports_once_too_often():
            for step in range(2 + rank()):
                turnout.report({"step": step})

        def returns_early():
            if rank() == 0:
                turnout.collective.barrier()

        functions = [
            raises_beside_a_barrier_of_torch, raises_what_cannot_be_rebuilt, skips_a_barrier, reports_once_too_often,
            returns_early,
        ]
        failures, took = {}, {}
        for number, function in enumerate(functions):
            started = time.monotonic()
            failures[function.__name__] = failure(function, name=function.__name__, storage_path=f"{OUT}/storage")
            took[function.__name__] = time.monotonic() - started
        is_well = fit(lambda: turnout.report({"well": 1}), storage_path=f"{OUT}/storage").metrics
        tell(failures=failures, took=took, is_well=is_well, threads=[each.name for each in threading.enumerate()])
    """
    done = torchrun(tmp_path, body)
    assert done.returncode == 0, done.stderr
    for each in told(tmp_path):
        failures = each["failures"]
        kind, text = failures["raises_beside_a_barrier_of_torch"]
        assert (kind, text.splitlines()[0]) == ("ValueError", "real cause")
        assert "raised on rank 1" in text
        kind, text = failures["raises_what_cannot_be_rebuilt"]
        assert (kind, text.splitlines()[0]) == ("NeedsTwo", "code 7 at loader")
        text = failures["skips_a_barrier"][1]
        assert "rank 0 is in barrier #1 (" in text
        assert "rank 1 is in report #1 (" in text
        text = failures["reports_once_too_often"][1]
        assert "rank 1 waits in report #3 (" in text
        assert "rank 0 has returned after 2 report(s)" in text
        text = failures["returns_early"][1]
        assert "rank 0 waits in barrier #1 (" in text
        assert "rank 1 has returned" in text
        assert all(name in text for text in (failures["skips_a_barrier"][1],) for name in ("script.py:",))
        assert max(each["took"].values()) < 10
        assert each["is_well"] == {"well": 1}
        assert each["threads"] == ["MainThread"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("os.kill(os.getpid(), 9)", ["rank 1 is gone", "last seen in ", "script.py:", "exitcode  : -9"]),
        ("os._exit(3)", ["rank 1 is gone", "last seen in ", "script.py:", "exitcode  : 3"]),
        (
            "time.sleep(1000)",
            ["report #2 has waited 1 s for rank(s) 1", "rank 0 waits in report #2 (", "rank 1 is in train ("],
        ),
    ],
)
def test_a_rank_that_is_gone_or_hangs_ends_the_others_within_seconds(
    tmp_path: Path, how: str, expected: Sequence[str]
) -> None:
    body = f"""
        def train():
            report_folder({{"step": 0}}, model="0")
            if rank() == 1:
                open(f"{{OUT}}/at", "w").close()
                {how}
            report_folder({{"step": 1}}, model="1")

        fit(train, name="gone", storage_path=f"{{OUT}}/storage", stall_timeout_s=1, stall_action="fail")
    """
    done = torchrun(tmp_path, body)
    took = time.time() - (tmp_path / "at").stat().st_mtime
    assert done.returncode != 0
    assert [each for each in expected if each not in done.stderr] == [], done.stderr
    assert took < 15
    assert committed(tmp_path, "gone") == ["checkpoint_000000"]


def test_a_job_that_torchrun_restarts_resumes_from_its_newest_commit(tmp_path: Path) -> None:
    body = """
        from turnout import failpoints
        from turnout.testing.faults import Fault, Faults

        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]

        def train():
            checkpoint = turnout.get_checkpoint()
            first = 0
            if checkpoint is None:
                failpoints.arm(Faults([Fault(point="commit.after_upload", action="kill", on_hit=3, rank=1)]).strike)
            else:
                with checkpoint.as_directory() as folder, open(os.path.join(folder, "step")) as file:
                    first = int(file.read()) + 1
            for step in range(first, 5):
                report_folder({"step": step}, step=str(step), **{f"rank-{rank()}-try-{attempt}": ""})
            return first

        result = fit(train, name="restarted", storage_path=f"{OUT}/storage", on_existing="error")
        tell(values=result.return_values, metrics=result.metrics, attempt=attempt)
    """
    done = torchrun(tmp_path, body, "--max-restarts", "1")
    assert done.returncode == 0, done.stderr
    for each in told(tmp_path):
        assert (each["values"], each["metrics"], each["attempt"]) == ([2, 2], {"step": 4}, "1")
    run = tmp_path / "storage" / "restarted"
    attempts = json.loads((run / "run.json").read_text())["attempts"]
    assert [each["number"] for each in attempts] == [0, 1]
    assert "restart 1 of the job" in attempts[1]["cause"]
    offered = committed(tmp_path, "restarted")
    assert offered[:2] == ["checkpoint_000000", "checkpoint_000001"]
    assert len(offered) == 5
    files = sorted(os.listdir(run / "checkpoints" / offered[2]))
    assert files == [".turnout.json", "rank-0-try-1", "rank-1-try-1", "step"], "nothing of the try that was killed"


def test_what_cannot_be_meant_under_torchrun_is_refused(tmp_path: Path) -> None:
    body = """
        def refusal(make):
            try:
                make().fit()
            except Exception as error:
                return [type(error).__name__, str(error)]

        def train():
            turnout.report({"alone": turnout.get_context().get_world_size()})

        here = ScalingConfig(num_workers=0)
        stored = RunConfig(storage_path=f"{OUT}/storage")
        overwrites = RunConfig(name="x", storage_path=f"{OUT}/storage", on_existing="overwrite")
        tell(
            workers=refusal(lambda: TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2))),
            process=refusal(
                lambda: TorchTrainer(train, scaling_config=ScalingConfig(num_workers=1, controller="process"))
            ),
            other=refusal(lambda: DataParallelTrainer(train, scaling_config=here, run_config=stored)),
            nameless=refusal(lambda: TorchTrainer(train, scaling_config=here, run_config=stored)),
            overwrites=refusal(lambda: TorchTrainer(train, scaling_config=here, run_config=overwrites)),
            data=refusal(lambda: TorchTrainer(train, scaling_config=here, datasets={"x": [1, 2]})),
            made=refusal(lambda: TorchTrainer(train, scaling_config=here, datasets={"x": lambda: [1, 2]})),
            alone=DataParallelTrainer(train, scaling_config=here).fit().metrics,
        )
    """
    done = torchrun(tmp_path, body, "--max-restarts", "2")
    assert done.returncode == 0, done.stderr
    for each in told(tmp_path):
        for name in ("workers", "process"):
            assert each[name][0] == "UsageError"
            assert "ScalingConfig(num_workers=0)" in each[name][1]
        assert each["other"][0] == "UnsupportedError"
        assert "TorchTrainer" in each["other"][1]
        assert each["nameless"][0] == "UsageError"
        assert "RunConfig(name=...)" in each["nameless"][1]
        assert each["overwrites"][0] == "UsageError"
        for name in ("data", "made"):
            assert each[name][0] == "DataError"
            assert "datasets['x']" in each[name][1]
        assert each["alone"] == {"alone": 1}
    assert "trains alone in each of torchrun's 2 processes" in done.stderr
