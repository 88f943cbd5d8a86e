"""`turnout.lightning`: what Lightning comes to alone it comes to on every track, and goes on so after a kill."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import turnout
import turnout.lightning
from tests.frameworks.torch_family import PRELOADED, loaded_after, one_thread
from turnout import CheckpointUploadMode, FailureConfig, Result, RunConfig
from turnout.errors import MissingDependencyError, UsageError
from turnout.integrations import lightning as integration
from turnout.lightning import classes_for, prepare_trainer
from turnout.testing.ranks import warm_server
from turnout.testing.tracks import IN_PROCESS, PROCESS, RAY, TORCHRUN, Track
from turnout.torch import TorchTrainer

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
NUM_STEPS = 6  # of an epoch
pytestmark = [
    pytest.mark.timeout(180),  # the first of them waits for the server that imports the frameworks
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings(
        "ignore:.*isinstance.treespec, LeafSpec.. is deprecated"
    ),  # Lightning's own use of torch
]


@pytest.fixture(scope="module", autouse=True)
def _server(pytestconfig: pytest.Config) -> Iterator[None]:
    warm_server(pytestconfig).start(PRELOADED)
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What Lightning or the callback would leave lying shows in the working and the temporary folder."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert [each for each in (tmp_path / "cwd").iterdir() if not each.name.startswith(".")] == []
    assert [each.name for each in (tmp_path / "tmp").glob("turnout-lightning-*")] == []


def regression(package: Any, *, dies_at: tuple[int, int, Path] | None = None) -> Any:
    """A Lightning module that remembers what it was trained on.

    Args:
        package: Lightning's.
        dies_at: the rank, the batch of all, and a mark of its having died, by which it dies once.
    """

    class Regression(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
            self.trained: list[tuple[int, int]] = []

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            if dies_at is not None:
                rank, step, mark = dies_at
                if (self.global_rank, self.global_step) == (rank, step) and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            x, y = batch
            self.trained.append((self.current_epoch, self.global_step))
            loss = nn.functional.mse_loss(self.network(x), y)
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
            x, y = batch
            self.log("val_loss", nn.functional.mse_loss(self.network(x), y), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}

    return Regression()


class Resumable(DataLoader[Any]):
    """A loader that goes on within an epoch, as torchdata's `StatefulDataLoader` does."""

    given = to_skip = 0

    def __iter__(self) -> Any:
        self.given, to_skip, self.to_skip = self.to_skip, self.to_skip, 0
        for number, batch in enumerate(super().__iter__()):
            if number >= to_skip:
                self.given += 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.to_skip = state["given"] % len(self)


def rows() -> TensorDataset:
    x = torch.randn(8 * NUM_STEPS, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(dim=1, keepdim=True).sin())


def loader(num_ranks: int, kind: type[DataLoader[Any]] = DataLoader) -> DataLoader[Any]:
    return kind(rows(), batch_size=8 // num_ranks)


def state_of(trainer: Any, model: Any) -> dict[str, Any]:
    """Where training has come to, in lists."""
    [optimizer], [scheduler] = trainer.optimizers, trainer.lr_scheduler_configs
    return {
        "weights": [each.tolist() for each in model.network.state_dict().values()],
        "moments": [each["exp_avg"].tolist() for each in optimizer.state_dict()["state"].values()],
        "steps": [float(each["step"]) for each in optimizer.state_dict()["state"].values()],
        "rate": optimizer.param_groups[0]["lr"],
        "schedule": scheduler.scheduler.last_epoch,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "loss": float(trainer.callback_metrics["loss"]),
        "trained": model.trained,
    }


def train(config: dict[str, Any]) -> dict[str, Any]:
    """What a user writes."""
    package = importlib.import_module(config.get("package", "lightning.pytorch"))
    classes = classes_for(package)
    callback = classes.ReportCallback(**config.get("report", {}))
    sharded = config.get("sharded")
    strategy = classes.DDPStrategy() if sharded is None else classes.FSDPStrategy(**sharded)
    options = {**QUIET, "max_epochs": 4, "strategy": strategy, **config.get("options", {})}
    trainer = prepare_trainer(package.Trainer(callbacks=[callback], **options))
    kind = Resumable if config.get("resumable") else DataLoader
    model = regression(package, dies_at=config.get("dies_at"))
    checkpoint = turnout.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
        path = os.path.join(folder, callback.CHECKPOINT_NAME) if folder else None
        validation = loader(trainer.world_size) if config.get("validates") else None
        trainer.fit(model, loader(trainer.world_size, kind), validation, ckpt_path=path)
    if sharded is not None:
        return {"loss": float(trainer.callback_metrics["loss"]), "trained": model.trained}
    return state_of(trainer, model)


def fit(track: Track, config: dict[str, Any] | None = None, **arguments: Any) -> Result:
    return track.fit(train, trainer=TorchTrainer, train_loop_config=config or {}, **arguments)


def alone(package_name: str = "lightning.pytorch") -> dict[str, Any]:
    package = importlib.import_module(package_name)
    trainer, model = package.Trainer(devices=1, max_epochs=4, **QUIET), regression(package)
    # Lightning deals rows to ranks by this sampler, which it has of its own only where there are several.
    sampler: DistributedSampler[Any] = DistributedSampler(rows(), num_replicas=1, rank=0)
    trainer.fit(model, DataLoader(rows(), batch_size=8, sampler=sampler))
    return state_of(trainer, model)


def equal_but_for_rounding(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    for name in ("weights", "moments"):
        for one, two in zip(ours[name], theirs[name], strict=True):
            if not torch.allclose(torch.tensor(one), torch.tensor(two), rtol=0, atol=1e-6):
                return False
    rest = ("steps", "rate", "schedule", "epoch", "step")
    return [ours[name] for name in rest] == [theirs[name] for name in rest]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Where Lightning alone comes to."""
    return alone()


# The same end on every track


@pytest.mark.parametrize("package", PACKAGES)
def test_in_process_a_trainer_comes_to_exactly_what_lightning_comes_to_alone(package: str) -> None:
    result = fit(IN_PROCESS, {"package": package})
    assert result.return_value == alone(package)
    assert result.metrics is not None
    assert result.metrics.keys() == {"loss", "epoch", "step"}
    assert (result.metrics["epoch"], result.metrics["step"]) == (3, 4 * NUM_STEPS)


def test_two_ranks_come_to_what_lightning_comes_to_alone(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    result = fit(PROCESS, run_config=RunConfig(storage_path=str(tmp_path)))
    assert result.return_values is not None
    for state in result.return_values:
        assert equal_but_for_rounding(state, undisturbed)
    assert [metrics["epoch"] for _, metrics in result.best_checkpoints or ()] == [0, 1, 2, 3]


def test_the_ranks_of_torchrun_come_to_what_lightning_comes_to_alone(undisturbed: dict[str, Any]) -> None:
    result = fit(TORCHRUN)
    assert result.return_values is not None
    assert [equal_but_for_rounding(state, undisturbed) for state in result.return_values] == [True, True]


@pytest.mark.on_ray
def test_the_ranks_of_ray_come_to_what_lightning_comes_to_alone(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    result = fit(RAY, run_config=RunConfig(storage_path=str(tmp_path)))
    assert result.return_values is not None
    assert [equal_but_for_rounding(state, undisturbed) for state in result.return_values] == [True, True]


# Killed, and run again


@pytest.mark.parametrize(
    ("report", "resumable", "goes_on_from"),
    [({}, False, 2 * NUM_STEPS), ({"every_n_train_steps": 5}, True, 2 * NUM_STEPS + 3)],
    ids=["from the end of an epoch", "from within an epoch"],
)
def test_killed_in_the_middle_of_epoch_two_it_goes_on_as_if_undisturbed(
    tmp_path: Path, undisturbed: dict[str, Any], report: dict[str, Any], resumable: bool, goes_on_from: int
) -> None:
    config = {"report": report, "resumable": resumable, "dies_at": (1, 2 * NUM_STEPS + 3, tmp_path / "died")}
    run = RunConfig(storage_path=str(tmp_path / "runs"), failure_config=FailureConfig(max_failures=1))
    result = fit(PROCESS, config, run_config=run)
    assert (tmp_path / "died").exists()
    assert result.return_values is not None
    for state in result.return_values:
        assert state["trained"] == [(step // NUM_STEPS, step) for step in range(goes_on_from, 4 * NUM_STEPS)]
        assert equal_but_for_rounding(state, undisturbed)


def test_a_run_of_the_same_name_goes_on_from_its_last_epoch(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    run = RunConfig(name="again", storage_path=str(tmp_path))
    fit(IN_PROCESS, {"options": {"max_epochs": 2}}, run_config=run)
    state = fit(IN_PROCESS, run_config=run).return_value
    assert [epoch for epoch, _ in state.pop("trained")] == [2] * NUM_STEPS + [3] * NUM_STEPS
    assert state == {name: value for name, value in undisturbed.items() if name != "trained"}


def fail_on_one_rank(config: dict[str, Any]) -> None:
    """Rank 1 raises, while rank 0 computes and says when it is unwound."""
    import lightning.pytorch as package

    class Computes(package.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 2 and trainer.global_rank == 1:
                raise LookupError("no rows left")
            while trainer.global_step == 2:
                pass

        def on_exception(self, trainer: Any, *_: Any) -> None:
            (config["marks"] / f"rank-{trainer.global_rank}").touch()

    trainer = package.Trainer(strategy=classes_for(package).DDPStrategy(), callbacks=[Computes()], **QUIET)
    prepare_trainer(trainer).fit(regression(package), loader(trainer.world_size))


def test_a_rank_unwinds_when_another_has_failed(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no rows left"):
        PROCESS.fit(
            fail_on_one_rank,
            trainer=TorchTrainer,
            train_loop_config={"marks": tmp_path},
            run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        )
    assert sorted(each.name for each in tmp_path.glob("rank-*")) == ["rank-0", "rank-1"]


# FSDP


@pytest.mark.parametrize("kind", ["full", "sharded"])
@pytest.mark.filterwarnings("ignore:.*NO_SHARD")  # torch's word on a group of one
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")  # of its own FSDP1, which is Lightning's
@pytest.mark.filterwarnings("ignore:.*_get_pg_default_device")
@pytest.mark.filterwarnings("ignore:Multiple backends are registered with this ProcessGroup")
def test_what_two_ranks_have_sharded_is_gone_on_with_by_one(
    tmp_path: Path, undisturbed: dict[str, Any], kind: str
) -> None:
    config = {"sharded": {"state_dict_type": kind}, "options": {"max_epochs": 2}}
    two = fit(PROCESS, config, run_config=RunConfig(storage_path=str(tmp_path / "two")))
    assert two.checkpoint is not None
    files = {str(each.relative_to(two.checkpoint.path)) for each in Path(two.checkpoint.path).rglob("*.distcp")}
    assert files == (set() if kind == "full" else {f"checkpoint.ckpt/__{rank}_0.distcp" for rank in range(2)})

    config = {"sharded": {"state_dict_type": kind}}
    one = fit(IN_PROCESS, config, resume_from_checkpoint=two.checkpoint).return_value
    assert [epoch for epoch, _ in one["trained"]] == [2] * NUM_STEPS + [3] * NUM_STEPS
    assert one["loss"] == pytest.approx(undisturbed["loss"], abs=1e-6)


# The callback


def reports_of(config: dict[str, Any], storage: Path) -> list[dict[str, Any]]:
    result = fit(IN_PROCESS, config, run_config=RunConfig(name="run", storage_path=str(storage)))
    assert len(result.best_checkpoints or ()) == len(result.metrics_dataframe), "each report has a checkpoint"
    reported: list[dict[str, Any]] = result.metrics_dataframe.to_dict("records")
    return reported


def test_it_reports_within_an_epoch_and_after_validation_where_it_is_told(tmp_path: Path) -> None:
    options = {"max_epochs": 2, "val_check_interval": 3}
    report = {"every_n_train_steps": 4, "after_validation": True, "after_train_epoch": False}
    reported = reports_of({"report": report, "options": options, "validates": True}, tmp_path)
    assert [each["step"] for each in reported] == [3, 4, 6, 8, 9, 12, 12]
    assert [each["epoch"] for each in reported] == [0, 0, 0, 1, 1, 1, 1]
    assert "val_loss" in reported[0]


def test_a_step_that_ends_an_epoch_is_reported_once(tmp_path: Path) -> None:
    reported = reports_of({"report": {"every_n_train_steps": 3}, "options": {"max_epochs": 2}}, tmp_path)
    assert [each["step"] for each in reported] == [3, 6, 9, 12]


@pytest.mark.parametrize("mode", [CheckpointUploadMode.ASYNC, CheckpointUploadMode.NO_UPLOAD])
@pytest.mark.parametrize("track", [IN_PROCESS, PROCESS], ids=lambda track: track.name)
def test_it_hands_files_over_in_every_mode(tmp_path: Path, mode: CheckpointUploadMode, track: Track) -> None:
    config = {"report": {"checkpoint_upload_mode": mode}, "options": {"max_epochs": 2}}
    result = fit(track, config, run_config=RunConfig(storage_path=str(tmp_path / "runs")))
    for checkpoint, _ in result.best_checkpoints or ():
        assert (Path(checkpoint.path) / "checkpoint.ckpt").stat().st_size > 1000
    assert len(result.best_checkpoints or ()) == 2


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("checkpoint_upload_mode", "SYNC"),
        ("validation", 1),
        ("after_train_epoch", None),
        ("after_validation", 1),
        ("every_n_train_steps", 0),
    ],
)
def test_an_argument_of_the_callback_that_cannot_be_meant_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(UsageError, match=argument):
        turnout.lightning.ReportCallback(**{argument: value})


# prepare_trainer


def prepare(package_name: str, **options: Any) -> None:
    package = importlib.import_module(package_name)
    prepare_trainer(package.Trainer(**{**QUIET, **options}))


def prepared_in_process(**options: Any) -> None:
    fit = TorchTrainer(lambda: prepare("lightning.pytorch", **options), scaling_config=IN_PROCESS.scaling_config).fit
    fit()


def test_a_trainer_on_one_device_is_taken_in_process() -> None:
    prepared_in_process()


@pytest.mark.parametrize("options", [{"devices": 2}, {"devices": 2, "strategy": "ddp"}])
def test_a_trainer_that_would_start_processes_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"rank 0 of 2, and in the run this is rank 0 of 1; pass Trainer\(strategy="):
        prepared_in_process(**options)


def test_a_trainer_that_would_train_in_another_process_is_refused() -> None:
    with pytest.raises(UsageError, match="from which nothing is reported"):
        prepared_in_process(devices=1, strategy="ddp_spawn")


def test_what_is_no_trainer_is_refused_and_so_is_a_trainer_outside_a_run() -> None:
    with pytest.raises(UsageError, match="trainer is a dict"):
        TorchTrainer(lambda: prepare_trainer({}), scaling_config=IN_PROCESS.scaling_config).fit()
    with pytest.raises(UsageError, match="no run is active"):
        prepare("lightning.pytorch")


def prepare_others() -> list[str]:
    """On two ranks: what is said of Lightning's own strategies."""
    said = []
    import lightning.pytorch as package

    classes = classes_for(package)
    for options in (
        {},
        {"strategy": "ddp"},
        {"strategy": "ddp", "plugins": [classes.LightningEnvironment()]},
        {"strategy": "ddp", "plugins": [classes.LightningEnvironment()], "num_nodes": 2},
    ):
        try:
            prepare("lightning.pytorch", **options)
            said.append("taken")
        except UsageError as error:
            said.append(str(error))
    return said


def test_on_two_ranks_a_trainer_is_taken_that_says_the_same_of_them_as_the_run(tmp_path: Path) -> None:
    result = PROCESS.fit(prepare_others, trainer=TorchTrainer, run_config=RunConfig(storage_path=str(tmp_path)))
    assert result.return_values is not None
    said = result.return_values[1]
    assert "would train as rank 0 of 1, and in the run this is rank 1 of 2" in said[0]
    assert "would train as rank" in said[1]
    assert "would read the data as {'num_replicas': 1, 'rank': 1}" in said[2]
    assert said[3] == "taken"


def test_checkpoints_that_lightning_keeps_besides_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        import lightning.pytorch as package

        callback = classes_for(package).ReportCallback()
        prepare_trainer(package.Trainer(callbacks=[callback], **{**QUIET, "enable_checkpointing": True}))

    TorchTrainer(train, scaling_config=IN_PROCESS.scaling_config).fit()
    assert "Lightning keeps checkpoints of its own in" in caplog.text


# What it costs and needs


def test_importing_the_face_imports_no_framework() -> None:
    assert loaded_after("import turnout.lightning") == []


@pytest.mark.parametrize("imported", PACKAGES)
def test_the_classes_are_those_of_the_package_that_is_imported(monkeypatch: pytest.MonkeyPatch, imported: str) -> None:
    for name in PACKAGES:
        importlib.import_module(name)
        if name != imported:
            monkeypatch.delitem(sys.modules, name)
    base = importlib.import_module(imported).strategies.DDPStrategy
    assert issubclass(turnout.lightning.DDPStrategy, base)
    assert turnout.lightning.DDPStrategy is classes_for(imported).DDPStrategy


@pytest.mark.parametrize("package", [("lightning", "pip install lightning"), ("pytorch_lightning", "pip install pyt")])
def test_without_lightning_the_line_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch, package: tuple[str, str]
) -> None:
    name, line = package
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        monkeypatch.setitem(sys.modules, each, None)
    monkeypatch.setitem(sys.modules, name, None)
    integration._classes.cache_clear()
    with pytest.raises(MissingDependencyError, match=line):
        classes_for(name)


def test_a_lightning_that_is_too_old_is_told_which_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning.pytorch as package

    integration._classes.cache_clear()
    monkeypatch.setattr(package, "__version__", "1.9.5")
    with pytest.raises(MissingDependencyError, match=r"finds lightning.pytorch 1.9.5.*lightning>=2.2"):
        classes_for(package)
