"""Train a small language model on Python's own words: by Transformers alone, in process and on two ranks.

python examples/transformers_text.py

Nothing is downloaded: the text are docstrings of the standard library, the vocabulary is their characters, and the
model is made from a configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import turnout
from turnout import LoggingConfig, RunConfig, ScalingConfig
from turnout.huggingface.transformers import ReportCallback, prepare_trainer
from turnout.torch import TorchTrainer

BLOCK = 32  # characters that the model sees at once
BATCH_SIZE = 16
NUM_BLOCKS = 160  # the last 32 are held out


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """Stretches of text, as numbers of characters.

    Args:
        numbers: one row a stretch.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.numbers[index], "labels": self.numbers[index]}


def text() -> str:
    """What two modules of the standard library say of themselves."""
    classes = (argparse.ArgumentParser, argparse.HelpFormatter, logging.Logger, logging.Handler)
    methods = [getattr(each, name) for each in classes for name in sorted(vars(each))]
    documents = [argparse.__doc__, *(method.__doc__ for method in methods if callable(method))]
    return "\n".join(document for document in documents if document)


def trainer_for(output_dir: str, num_ranks: int, callbacks: list[Any]) -> Trainer:
    """Transformers' own trainer, as it would be without Turnout. All ranks share each batch."""
    words = text()[: NUM_BLOCKS * BLOCK]
    vocabulary = sorted(set(words))
    numbers = torch.tensor([vocabulary.index(character) for character in words]).reshape(-1, BLOCK)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(vocabulary), n_positions=BLOCK, n_embd=32, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=2,
        per_device_train_batch_size=BATCH_SIZE // num_ranks,
        per_device_eval_batch_size=BATCH_SIZE // num_ranks,
        learning_rate=5e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Blocks(numbers[:-32]),
        eval_dataset=Blocks(numbers[-32:]),
        callbacks=callbacks,
    )


def train(config: dict[str, Any]) -> None:
    """The train function; it resumes from the newest checkpoint."""
    num_ranks = turnout.get_context().get_world_size()
    trainer = prepare_trainer(trainer_for(config["output_dir"], num_ranks, [ReportCallback()]))
    checkpoint = turnout.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
        path = os.path.join(folder, ReportCallback.CHECKPOINT_NAME) if folder else None
        trainer.train(resume_from_checkpoint=path)


def alone() -> float:
    """The loss of Transformers without Turnout, on the text that was held out."""
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = trainer_for(output_dir, 1, [])
        trainer.train()
        return float(trainer.evaluate()["eval_loss"])


def on(num_workers: int) -> float:
    """The loss of Turnout on so many processes; 0 is this one."""
    with tempfile.TemporaryDirectory() as storage_path, tempfile.TemporaryDirectory() as output_dir:
        result = TorchTrainer(
            train,
            train_loop_config={"output_dir": output_dir},
            scaling_config=ScalingConfig(num_workers=num_workers, controller="process" if num_workers else None),
            run_config=RunConfig(storage_path=storage_path, logging_config=LoggingConfig("WARNING")),
        ).fit()
    assert result.metrics is not None
    return float(result.metrics["eval_loss"])


def main() -> None:
    """Train in three ways, and show what came of each."""
    for name, loss in (("Transformers alone", alone()), ("in process", on(0)), ("on 2 ranks", on(2))):
        print(f"{name}: loss {loss:.4f}")


if __name__ == "__main__":
    main()
