"""The seam: a controller that knows nothing of reports or retries gets their meaning from the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import turnout
import turnout.collective
from tests.unit.thread_controller import ThreadController
from turnout import (
    BackendConfig,
    ControllerError,
    DataParallelTrainer,
    FailureConfig,
    PreemptionError,
    RunConfig,
    ScalingConfig,
    UsageError,
    UserCallback,
    WorkerGroupError,
)
from turnout.backends.base import Backend
from turnout.controllers import registry
from turnout.session import activation
from turnout.session.collective import Collective
from turnout.session.events import RankInfo


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> type[ThreadController]:
    monkeypatch.setattr(registry, "_registered", {})

    class Own(ThreadController):
        failed: ClassVar[list[Exception]] = []

    registry.register("threads", Own)
    return Own


def fit(train_fn: Any, num_workers: int = 2, **arguments: Any) -> turnout.Result:
    scaling_config = ScalingConfig(num_workers=num_workers, controller="threads")
    return DataParallelTrainer(train_fn, scaling_config=scaling_config, **arguments).fit()


def rank() -> int:
    return turnout.get_context().get_world_rank()


class Recorder(UserCallback):
    def __init__(self) -> None:
        self.reports: list[list[dict[str, Any]]] = []
        self.failures: list[dict[int, BaseException]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.reports.append(metrics)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, BaseException]) -> None:
        self.failures.append(worker_exceptions)


def test_reports_of_all_ranks_are_merged_by_rank_and_rank_zeros_are_the_results(controller: Any) -> None:
    recorder = Recorder()

    def train() -> int:
        for step in range(3):
            turnout.report({"rank": rank(), "step": step})
        return 10 + rank()

    result = fit(train, num_workers=3, run_config=RunConfig(callbacks=[recorder]))
    assert recorder.reports == [[{"rank": each, "step": step} for each in range(3)] for step in range(3)]
    assert result.metrics == {"rank": 0, "step": 2}
    assert (result.return_value, result.return_values) == (10, [10, 11, 12])


def test_ranks_meet_over_their_channels(controller: Any) -> None:
    def train() -> object:
        turnout.collective.barrier()
        return turnout.collective.broadcast_from_rank_zero(f"from {rank()}"), activation.active().is_distributed()

    assert fit(train).return_values == [("from 0", True)] * 2


def test_the_first_rank_to_fail_is_the_cause_and_all_are_listed(controller: Any) -> None:
    recorder = Recorder()

    class Cause(ValueError):
        pass

    def train() -> None:
        if rank() == 0:
            raise Cause("the cause")
        while not any(isinstance(each, Cause) for each in controller.failed):
            pass
        raise ConnectionError("a consequence")

    with pytest.raises(Cause, match="the cause") as caught:
        fit(train, run_config=RunConfig(callbacks=[recorder]))
    assert isinstance(caught.value, WorkerGroupError)
    assert {r: type(e) for r, e in caught.value.worker_failures.items()} == {0: Cause, 1: ConnectionError}
    assert set(recorder.failures[0]) == {0, 1}


def test_a_rank_that_died_without_a_word_is_named_with_its_controllers_reason(controller: Any) -> None:
    controller.silent_rank = 1
    with pytest.raises(WorkerGroupError, match="rank 1 was killed") as caught:
        fit(rank)
    assert set(caught.value.worker_failures) == {1}


def test_a_group_that_cannot_be_started_is_a_controller_failure_with_a_limit_of_its_own(controller: Any) -> None:
    controller.failures_to_start = 2
    assert fit(rank).return_values == [0, 1]
    failure_config = FailureConfig(max_failures=5, controller_failure_limit=1)
    with pytest.raises(ControllerError, match="no room"):
        fit(rank, run_config=RunConfig(failure_config=failure_config))


def test_preemptions_are_counted_apart(controller: Any) -> None:
    controller.preemptions = 1
    assert fit(rank).return_values == [0, 1]
    with pytest.raises(PreemptionError, match="node-1 goes"):
        fit(rank, run_config=RunConfig(failure_config=FailureConfig(max_preemption_failures=0)))


@dataclass(frozen=True, slots=True, repr=False)
class RecordingConfig(BackendConfig):
    backend_class: ClassVar[str | None] = f"{__name__}:RecordingBackend"


class RecordingBackend(Backend):
    calls: ClassVar[list[str]] = []

    def start(self, ranks: RankInfo, rendezvous: Collective) -> None:
        self.calls.append(f"start {ranks.rank} with {rendezvous.broadcast('address', f'rank {ranks.rank}')}")

    def stop(self, error: Exception | None) -> None:
        self.calls.append(f"stop after {error}")


def test_a_backend_is_started_on_every_rank_before_the_function_and_stopped_after_it(
    controller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(RecordingBackend, "calls", calls)

    def train() -> None:
        turnout.collective.barrier()
        raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        fit(train, backend_config=RecordingConfig())
    assert sorted(calls) == ["start 0 with rank 0", "start 1 with rank 0", *["stop after in between"] * 2]


def test_a_backend_is_not_started_where_the_track_forms_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(RecordingBackend, "calls", calls)
    trainer = DataParallelTrainer(
        lambda: None, backend_config=RecordingConfig(), scaling_config=ScalingConfig(num_workers=0)
    )
    trainer.fit()
    assert calls == []


def test_a_registered_name_is_known_and_cannot_be_taken_again(controller: Any) -> None:
    assert registry.known() == ["local", "process", "ray", "threads", "torchrun"]
    registry.register("threads", controller)
    with pytest.raises(UsageError, match="is registered under this name"):
        registry.register("threads", ThreadController)
    with pytest.raises(UsageError, match="built-in"):
        registry.register("local", ThreadController)
    with pytest.raises(UsageError, match="class derived from"):
        registry.register("mine", print)  # type: ignore[arg-type]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is installed with two entry points, one of which takes a built-in controller's name."""
    (tmp_path / "slurm_turnout.py").write_text(
        "from tests.unit.thread_controller import ThreadController\n\n"
        "class Slurm(ThreadController):\n    name = 'slurm'\n"
    )
    info = tmp_path / "slurm_turnout-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slurm-turnout\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINT_GROUP}]\nslurm = slurm_turnout:Slurm\nlocal = slurm_turnout:Slurm\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_controller_of_an_installed_package_is_found_by_its_entry_point(
    installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "slurm" in registry.known()
    trainer = DataParallelTrainer(rank, scaling_config=ScalingConfig(num_workers=2, controller="slurm"))
    assert trainer.fit().return_values == [0, 1]
    assert registry.find("local").__name__ == "LocalController"
    assert "'local' = 'slurm_turnout:Slurm' is not used: a built-in controller has its name" in caplog.text


def test_aborting_an_in_process_run_makes_its_next_report_raise() -> None:
    from turnout.controllers.local import LocalController

    controllers: list[LocalController] = []
    original = LocalController.__init__

    def remember(self: LocalController, spec: Any) -> None:
        original(self, spec)
        controllers.append(self)

    def train() -> None:
        turnout.report({"x": 1})
        controllers[0].abort("the operator said so", 0)
        turnout.report({"x": 2})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalController, "__init__", remember)
        with pytest.raises(ControllerError, match="the operator said so"):
            DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()


@pytest.mark.parametrize(("limit", "attempts"), [(-1, 2), (3, 4), (0, 1)])
def test_a_group_that_can_never_be_brought_up_is_tried_twice_or_as_often_as_the_user_says(
    controller: Any, limit: int, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.failures_to_start, controller.is_lasting = 100, True
    begun = []
    run_attempt = controller.run_attempt

    def counted(self: Any, worker: Any, sink: Any) -> Any:
        begun.append(self)
        return run_attempt(self, worker, sink)

    monkeypatch.setattr(controller, "run_attempt", counted)
    with pytest.raises(ControllerError, match="no room") as caught:
        fit(rank, run_config=RunConfig(failure_config=FailureConfig(controller_failure_limit=limit)))
    assert len(begun) == attempts
    assert any("not tried again" in note for note in getattr(caught.value, "__notes__", ())) == (limit == -1)
