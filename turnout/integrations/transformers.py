"""What a `transformers.Trainer` needs in a run: its ranks checked, a run's data as its own, a callback that reports."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from turnout.checkpoint import Checkpoint
from turnout.config import CheckpointUploadMode, ValidationTaskConfig
from turnout.errors import MissingDependencyError, UsageError
from turnout.integrations.reporting import check_report_arguments
from turnout.session import active, get_context, report

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["Reporting", "prepare_trainer", "report_callback"]

_FACE = "turnout.huggingface.transformers"
_INSTALL = "pip install 'turnout[transformers]'"
_OLDEST = (4, 40)


class Reporting:
    """Reports to the run, from every rank, each checkpoint that a `transformers.Trainer` saves, with its metrics.

    The metrics are all that the trainer has logged, the latest of each name. The checkpoint has the trainer's own in
    its folder ``checkpoint`` (`CHECKPOINT_NAME`), to resume from:
    ``trainer.train(resume_from_checkpoint=os.path.join(folder, ReportCallback.CHECKPOINT_NAME))``.

    When to log, evaluate and save is for `transformers.TrainingArguments` to say. A metric of the evaluation is that of
    this checkpoint only if the trainer evaluates whenever it saves.

    Args:
        checkpoint_upload_mode: ``SYNC`` or ``ASYNC``: when `turnout.report` returns.
        validation: run the trainer's `turnout.ValidationConfig` on each checkpoint, with these arguments if any.

    Raises:
        UsageError: an argument cannot be meant.
    """

    CHECKPOINT_NAME = "checkpoint"

    def __init__(
        self,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        super().__init__()
        # Not NO_UPLOAD: the trainer writes to its own output_dir.
        modes = (CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC)
        check_report_arguments(checkpoint_upload_mode, validation, modes)
        self._mode = checkpoint_upload_mode
        self._validation = validation

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer's hook; Any: its objects."""
        metrics: dict[str, Any] = {}  # Any: as the trainer logs them
        for logged in state.log_history:
            metrics.update(logged)
        # Ranks of one node write into one folder, and are done at different times.
        active().collective.barrier("the checkpoint of the Transformers trainer")
        source = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if get_context().get_local_rank() or not os.path.isdir(source):
            report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="turnout-", dir=args.output_dir, ignore_cleanup_errors=True) as folder:
            shutil.copytree(source, os.path.join(folder, self.CHECKPOINT_NAME), copy_function=_link)
            checkpoint = Checkpoint.from_directory(folder)
            # The trainer's own folder has these files too, so that they must be copied and not just be given a name.
            is_given_away = False if self._mode is CheckpointUploadMode.ASYNC else None
            report(metrics, checkpoint, None, self._mode, is_given_away, validation=self._validation)


@functools.cache
def report_callback() -> type[Any]:
    """`Reporting` as a `transformers.TrainerCallback`, which is imported now.

    Raises:
        MissingDependencyError: transformers is not installed, or too old.
    """
    base = _transformers().TrainerCallback
    described = {"__module__": _FACE, "__doc__": Reporting.__doc__}
    return type("ReportCallback", (Reporting, base), described)


def prepare_trainer(trainer: Any) -> Any:  # Any: a transformers.Trainer
    """Make sure that a trainer trains as this rank of the run, and let it read what a run's data sets are.

    As ``train_dataset`` and ``eval_dataset`` it then takes, beside what it takes anyway:

    - an Arrow shard, what `turnout.get_dataset_shard` gives of Arrow data: batches are of the size that the arguments
      say for a device, and each epoch of training has an order of its own;
    - a shard of Ray Data, or what its ``iter_torch_batches(...)`` returns.

    Both are this rank's share already. A batch is a dict of tensors by column, and goes to the model as it is. The
    trainer asks for ``max_steps`` with either. It goes on within an epoch where it was, after a restart.

    Args:
        trainer: a `transformers.Trainer`, also of a subclass.

    Returns:
        The trainer, changed in place.

    Raises:
        UsageError: outside a run, or it is no trainer, or it would train as another rank.
    """
    context = get_context()
    if not isinstance(trainer, _transformers().Trainer):
        kind = type(trainer).__qualname__
        raise UsageError(f"prepare_trainer(): trainer is a {kind}, and takes a transformers.Trainer")
    theirs = trainer.args.process_index, trainer.args.world_size
    ours = context.get_world_rank(), context.get_world_size()
    if theirs != ours:
        raise UsageError(
            f"prepare_trainer(): the trainer would train as rank {theirs[0]} of {theirs[1]}, and in the run this is "
            f"rank {ours[0]} of {ours[1]}; make its TrainingArguments within the train function of a "
            "turnout.torch.TorchTrainer, which has the process group that they look for"
        )
    for role in ("train_dataset", "eval_dataset"):
        _refuse_what_is_read_once(role, getattr(trainer, role))
    train_loader, eval_loader = trainer.get_train_dataloader, trainer.get_eval_dataloader

    def get_train_dataloader() -> DataLoader[Any]:
        passes = _passes_of(trainer.train_dataset, trainer.args.train_batch_size)
        return train_loader() if passes is None else _loader(passes, trainer)

    def get_eval_dataloader(eval_dataset: Any = None) -> DataLoader[Any]:
        chosen = trainer.eval_dataset if eval_dataset is None else eval_dataset
        chosen = trainer.eval_dataset[chosen] if isinstance(chosen, str) else chosen
        passes = _passes_of(chosen, trainer.args.eval_batch_size)
        return eval_loader(eval_dataset) if passes is None else _loader(passes, None)

    trainer.get_train_dataloader, trainer.get_eval_dataloader = get_train_dataloader, get_eval_dataloader
    return trainer


class _Passes:
    """Data of a run that can be read again and again.

    Args:
        read: starts a pass, given the number of the epoch, or None where the order is to be as it is stored.
        length: batches of a pass; None where only reading tells.
    """

    def __init__(self, read: Callable[[int | None], Iterator[Any]], length: int | None) -> None:
        self.read = read
        self.length = length


def _passes_of(dataset: Any, batch_size: int) -> _Passes | None:  # Any: data of the user's
    """How to read ``dataset`` if it is a run's; None if it is the trainer's to read."""
    arrow = sys.modules.get("turnout.data.arrow")
    if arrow is not None and isinstance(dataset, arrow.ArrowShard):

        def read(epoch: int | None) -> Iterator[Any]:
            if epoch is not None:
                dataset.set_epoch(epoch)
            batches: Iterator[Any] = dataset.iter_torch_batches(batch_size=batch_size)
            return batches

        return _Passes(read, -(-dataset.count() // batch_size))
    if not type(dataset).__module__.startswith("ray.data."):
        return None
    if hasattr(dataset, "iter_torch_batches"):
        batches = dataset.iter_torch_batches(batch_size=batch_size)
        return _Passes(lambda _: iter(batches), None)
    return _Passes(lambda _: iter(dataset), None)


def _loader(passes: _Passes, trainer: Any) -> DataLoader[Any]:
    """A loader of a pass; of training, if it is given the trainer, which it asks where it is."""
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset[Any]):
        """A pass for each iteration."""

        def __iter__(self) -> Iterator[Any]:
            if trainer is None:
                yield from passes.read(None)
                return
            num_steps, per_step = trainer.state.global_step, trainer.args.gradient_accumulation_steps
            if passes.length is not None:
                yield from passes.read(num_steps // -(-passes.length // per_step))
                return
            # The trainer takes what has no length for one epoch without end: when it is resumed, it skips all batches
            # that it has ever had, and those are of several passes.
            to_skip = 0 if self.has_begun or trainer.args.ignore_data_skip else num_steps * per_step
            self.has_begun = True
            num_given, num_before = 0, -1
            while num_before < num_given <= to_skip:
                num_before = num_given
                for batch in passes.read(None):
                    num_given += 1
                    yield batch

        has_begun = False

    class CountedBatches(Batches):
        """Passes whose length is known."""

        def __len__(self) -> int:
            assert passes.length is not None
            return passes.length

    dataset = Batches() if passes.length is None else CountedBatches()
    return DataLoader(dataset, batch_size=None)


def _refuse_what_is_read_once(role: str, dataset: Any) -> None:
    if hasattr(dataset, "__next__"):
        raise UsageError(
            f"prepare_trainer(): {role} is a {type(dataset).__qualname__}, which can be read once, and the trainer "
            "reads it in every epoch; pass the shard itself, as turnout.get_dataset_shard() gives it"
        )


def _link(source: str, target: str) -> None:
    """A second name for a file, or a copy where the disk has none: the trainer never writes into a file again."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _transformers() -> Any:
    try:
        import transformers
        from accelerate import PartialState  # noqa: F401  # whose absence its Trainer would tell later
    except ImportError as error:
        raise MissingDependencyError(error.name or "transformers", _INSTALL, _FACE) from error
    version = transformers.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        needed = f"transformers>={'.'.join(map(str, _OLDEST))}"
        raise MissingDependencyError(needed, f"pip install '{needed}'", f"{_FACE}, which finds version {version},")
    return transformers
