"""A tiny Hugging Face model on two workers, whose saves the callback reports."""

import json
import os
import sys
import tempfile

import torch
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def train_loop_per_worker():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=2
    )
    model = BertForSequenceClassification(config)
    rows = [{"input_ids": torch.tensor([row % 16, 1, 2]), "labels": row % 2} for row in range(16)]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        logging_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.add_callback(RayTrainReportCallback())
    prepare_trainer(trainer).train()


result = TorchTrainer(
    train_loop_per_worker,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name="transformers", storage_path=sys.argv[1], checkpoint_config=CheckpointConfig(num_to_keep=1)
    ),
).fit()
with result.checkpoint.as_directory() as folder:
    files = os.listdir(os.path.join(folder, RayTrainReportCallback.CHECKPOINT_NAME))
print(
    "RESULT",
    json.dumps(
        {
            "step": result.metrics["step"],
            "loss": round(result.metrics["loss"], 3),
            "saved": [name for name in ("config.json", "model.safetensors", "trainer_state.json") if name in files],
        }
    ),
)
