"""`turnout.huggingface.transformers`: what a Trainer comes to alone it comes to on every track, and goes on so."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import turnout
import turnout.huggingface.transformers
from tests.frameworks.torch_family import PRELOADED, loaded_after, one_thread
from turnout import CheckpointUploadMode, FailureConfig, Result, RunConfig
from turnout.errors import MissingDependencyError, UsageError
from turnout.huggingface.transformers import ReportCallback, prepare_trainer
from turnout.integrations import transformers as integration
from turnout.testing.ranks import warm_server
from turnout.testing.tracks import IN_PROCESS, PROCESS, RAY, TORCHRUN, Track
from turnout.torch import TorchTrainer

NUM_ROWS, NUM_STEPS = 32, 4  # of an epoch, each of 8 rows
pytestmark = pytest.mark.timeout(180)  # the first of them waits for the server that imports the frameworks


@pytest.fixture(scope="module", autouse=True)
def _server(pytestconfig: pytest.Config) -> Iterator[None]:
    warm_server(pytestconfig).start(PRELOADED)
    with one_thread():
        yield


def numbers() -> torch.Tensor:
    """Rows of six words of a vocabulary of ten."""
    return torch.randint(0, 10, (NUM_ROWS, 6), generator=torch.Generator().manual_seed(1))


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": numbers()[index], "labels": numbers()[index]}


class Dies(TrainerCallback):
    """Kills rank 1 at the beginning of a step, once."""

    def __init__(self, step: int, mark: Path) -> None:
        self.step, self.mark = step, mark

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if (args.process_index, state.global_step) == (1, self.step) and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Remembers(TrainerCallback):
    """Which steps were trained."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)


def trainer_for(output_dir: str, num_ranks: int, callbacks: list[Any], **given: Any) -> Trainer:
    """A model of two layers, made from a configuration."""
    torch.manual_seed(0)
    layers: dict[str, Any] = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 10, "n_positions": 6}
    drops: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**layers, **drops, bos_token_id=0, eos_token_id=0))
    datasets = {name: given.pop(name, Rows()) for name in ("train_dataset", "eval_dataset")}
    options: dict[str, Any] = {
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8 // num_ranks,
        "per_device_eval_batch_size": 8 // num_ranks,
        "learning_rate": 0.01,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "dataloader_pin_memory": False,
        "report_to": "none",
        "disable_tqdm": True,
        **given,
    }
    arguments = TrainingArguments(output_dir=output_dir, **options)
    return Trainer(model=model, args=arguments, callbacks=callbacks, **datasets)


def state_of(trainer: Trainer) -> dict[str, Any]:
    assert trainer.model is not None
    assert trainer.optimizer is not None
    assert trainer.lr_scheduler is not None
    return {
        "weights": torch.cat([each.detach().flatten() for each in trainer.model.parameters()]).tolist(),
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "rate": trainer.lr_scheduler.state_dict()["last_epoch"],
        "loss": [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each],
    }


def train(config: dict[str, Any]) -> dict[str, Any]:
    """What a user writes."""
    num_ranks = turnout.get_context().get_world_size()
    remembers = Remembers()
    callbacks: list[Any] = [ReportCallback(**config.get("report", {})), remembers]
    if "dies_at" in config:
        callbacks.append(Dies(*config["dies_at"]))
    options = dict(config.get("options", {}))
    if config.get("reads_shards"):
        shard = turnout.get_dataset_shard("train")
        options.update(train_dataset=shard, eval_dataset=turnout.get_dataset_shard("eval"))
    trainer = prepare_trainer(trainer_for(config["output_dir"], num_ranks, callbacks, **options))
    checkpoint = turnout.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
        path = os.path.join(folder, ReportCallback.CHECKPOINT_NAME) if folder else None
        trainer.train(resume_from_checkpoint=path)
    return {**state_of(trainer), "trained": remembers.steps}


def fit(track: Track, tmp_path: Path, config: dict[str, Any] | None = None, **arguments: Any) -> Result:
    given = {"output_dir": str(tmp_path / "output"), **(config or {})}
    return track.fit(train, trainer=TorchTrainer, train_loop_config=given, **arguments)


def equal_but_for_rounding(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Transformers' losses and Adam at 0.01 blow rounding up: 1e-4 of weights about 1."""
    is_near = torch.allclose(torch.tensor(ours["weights"]), torch.tensor(theirs["weights"]), rtol=0, atol=1e-4)
    return is_near and [ours[name] for name in ("step", "epoch", "rate")] == [
        theirs[name] for name in ("step", "epoch", "rate")
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Where Transformers alone comes to."""
    from accelerate.state import AcceleratorState, GradientState

    trainer = trainer_for(str(tmp_path_factory.mktemp("alone")), 1, [])
    trainer.train()
    state = state_of(trainer)
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    return state


# The same end on every track


def test_in_process_a_trainer_comes_to_exactly_what_it_comes_to_alone(tmp_path: Path, alone: dict[str, Any]) -> None:
    result = fit(IN_PROCESS, tmp_path)
    assert result.return_value.pop("trained") == list(range(3 * NUM_STEPS))
    assert result.return_value == alone
    assert result.metrics is not None
    assert result.metrics["eval_loss"] == alone["loss"][-1]
    assert {"loss", "learning_rate", "epoch"} < result.metrics.keys()


@pytest.mark.parametrize(
    "track", [TORCHRUN, PROCESS, pytest.param(RAY, marks=pytest.mark.on_ray)], ids=lambda track: track.name
)
def test_two_ranks_come_to_what_a_trainer_comes_to_alone(tmp_path: Path, alone: dict[str, Any], track: Track) -> None:
    run_config = RunConfig(storage_path=str(tmp_path / "runs"))
    config = {"report": {"checkpoint_upload_mode": CheckpointUploadMode.ASYNC}}
    result = fit(track, tmp_path, config, run_config=run_config)
    assert result.return_values is not None
    assert [equal_but_for_rounding(state, alone) for state in result.return_values] == [True, True]
    assert result.metrics is not None
    assert result.metrics["eval_loss"] == pytest.approx(alone["loss"][-1], abs=1e-4)
    assert len(result.best_checkpoints or ()) == 3
    assert result.checkpoint is not None
    files = {path.name for path in (Path(result.checkpoint.path) / "checkpoint").iterdir()}
    assert {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"} <= files
    assert [each.name for each in (tmp_path / "output").iterdir() if each.name.startswith("turnout")] == []


def test_killed_in_the_middle_of_epoch_two_it_goes_on_as_if_undisturbed(tmp_path: Path, alone: dict[str, Any]) -> None:
    config = {
        "dies_at": (2 * NUM_STEPS + 3, tmp_path / "died"),
        "options": {"save_strategy": "steps", "save_steps": 5},
    }
    run_config = RunConfig(storage_path=str(tmp_path / "runs"), failure_config=FailureConfig(max_failures=1))
    result = fit(PROCESS, tmp_path, config, run_config=run_config)
    assert (tmp_path / "died").exists()
    assert result.return_values is not None
    for state in result.return_values:
        assert state["trained"] == [10, 11]
        assert equal_but_for_rounding(state, alone)


# Data of a run


def table() -> pa.Table:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(numbers().flatten().tolist()), 6)
    return pa.table({"input_ids": rows, "labels": rows})


@pytest.mark.parametrize("track", [IN_PROCESS, PROCESS], ids=lambda track: track.name)
def test_arrow_shards_are_read_in_epochs_and_gone_on_with_within_one(tmp_path: Path, track: Track) -> None:
    arguments: dict[str, Any] = {"datasets": {"train": table(), "eval": table()}}
    steps = {"max_steps": 3 * NUM_STEPS, "lr_scheduler_type": "constant"}
    whole = fit(
        track,
        tmp_path / "whole",
        {"reads_shards": True, "options": steps},
        run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        **arguments,
    )
    assert len(whole.return_value["loss"]) == 3, "evaluated at the end of each epoch"
    run_config = RunConfig(name="halves", storage_path=str(tmp_path / "runs"))
    for max_steps in (NUM_STEPS + 2, 3 * NUM_STEPS):
        config = {"reads_shards": True, "options": {**steps, "max_steps": max_steps}}
        halves = fit(track, tmp_path / "halves", config, run_config=run_config, **arguments)
    assert halves.return_value["trained"] == list(range(NUM_STEPS + 2, 3 * NUM_STEPS))
    assert equal_but_for_rounding(halves.return_value, whole.return_value)


class RayBatches:
    """Reads as what ``iter_torch_batches`` of Ray Data returns: again and again, in batches, of no known length."""

    __module__ = "ray.data.iterator"

    def __iter__(self) -> Any:
        return iter([{"input_ids": rows, "labels": rows} for rows in numbers().chunk(NUM_STEPS)])


def train_on_batches(config: dict[str, Any]) -> dict[str, Any]:
    batches = RayBatches()
    options = {"train_dataset": batches, "eval_dataset": {"one": batches}, **config["options"]}
    return train({**config, "options": options})


def test_batches_of_unknown_length_are_gone_on_with_in_the_pass_that_was_left(tmp_path: Path) -> None:
    ends = []
    for name, parts in (("whole", [3 * NUM_STEPS]), ("parts", [NUM_STEPS + 2, 2 * NUM_STEPS, 3 * NUM_STEPS])):
        for max_steps in parts:
            options = {"max_steps": max_steps, "lr_scheduler_type": "constant", "eval_strategy": "no"}
            result = IN_PROCESS.fit(
                train_on_batches,
                trainer=TorchTrainer,
                train_loop_config={"output_dir": str(tmp_path / name), "options": options},
                run_config=RunConfig(name=name, storage_path=str(tmp_path / "runs")),
            )
        ends.append(result.return_value)
    whole, parts_end = ends
    assert parts_end["trained"] == list(range(2 * NUM_STEPS, 3 * NUM_STEPS))
    assert parts_end["weights"] == whole["weights"]


def train_on_ray_data(config: dict[str, Any]) -> dict[str, Any]:
    batches = turnout.get_dataset_shard("train").iter_torch_batches(batch_size=4)
    options = {"train_dataset": batches, "eval_strategy": "no", "max_steps": NUM_STEPS + 2}
    return train({**config, "options": options})


@pytest.mark.on_ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data's own
def test_the_ranks_of_ray_train_on_ray_data_for_more_than_an_epoch(tmp_path: Path) -> None:
    import ray

    rows = [{"input_ids": row, "labels": row} for row in numbers().numpy()]
    result = RAY.fit(
        train_on_ray_data,
        trainer=TorchTrainer,
        train_loop_config={"output_dir": str(tmp_path / "output")},
        run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        datasets={"train": ray.data.from_items(rows)},
    )
    assert result.return_values is not None
    first, second = result.return_values
    assert first["trained"] == second["trained"] == list(range(NUM_STEPS + 2))
    assert first["weights"] == second["weights"]
    assert result.checkpoint is not None


def evaluate_batches(config: dict[str, Any]) -> dict[str, float]:
    trainer = trainer_for(config["output_dir"], 1, [], eval_dataset={"one": RayBatches()}, max_steps=1)
    measured: dict[str, float] = prepare_trainer(trainer).evaluate()
    return measured


def test_batches_are_evaluated_by_name(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        evaluate_batches,
        train_loop_config={"output_dir": str(tmp_path)},
        scaling_config=IN_PROCESS.scaling_config,
    )
    assert "eval_one_loss" in trainer.fit().return_value


# What is refused, and what it needs


def in_process(function: Any) -> None:
    TorchTrainer(function, scaling_config=IN_PROCESS.scaling_config).fit()


def test_what_is_no_trainer_is_refused_and_so_is_a_trainer_outside_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trainer is a dict"):
        in_process(lambda: prepare_trainer({}))
    with pytest.raises(UsageError, match="no run is active"):
        prepare_trainer({})


def test_batches_that_can_be_read_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train_dataset is a list_iterator, which can be read once"):
        in_process(lambda: prepare_trainer(trainer_for(str(tmp_path), 1, [], train_dataset=iter([]), max_steps=1)))


def test_a_trainer_that_would_be_another_rank_is_refused(tmp_path: Path) -> None:
    def train() -> None:
        trainer = trainer_for(str(tmp_path), 1, [])
        trainer.args.__dict__["distributed_state"].num_processes = 4
        prepare_trainer(trainer)

    with pytest.raises(UsageError, match="would train as rank 0 of 4, and in the run this is rank 0 of 1"):
        in_process(train)


@pytest.mark.parametrize(
    ("argument", "value"), [("checkpoint_upload_mode", CheckpointUploadMode.NO_UPLOAD), ("validation", "yes")]
)
def test_an_argument_of_the_callback_that_cannot_be_meant_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(UsageError, match=argument):
        ReportCallback(**{argument: value})


def test_importing_the_face_imports_no_framework() -> None:
    assert loaded_after("import turnout.huggingface.transformers") == []


def test_without_transformers_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    integration.report_callback.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'turnout\[transformers\]'"):
        turnout.huggingface.transformers.ReportCallback  # noqa: B018


def test_transformers_that_are_too_old_are_told_which_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    integration.report_callback.cache_clear()
    monkeypatch.setattr(transformers, "__version__", "4.30.2")
    with pytest.raises(MissingDependencyError, match=r"finds version 4.30.2.*transformers>=4.40"):
        turnout.huggingface.transformers.ReportCallback  # noqa: B018
