"""What a Lightning trainer needs to train as the ranks of a run: strategies, an environment, a callback that reports.

Lightning comes as two packages, `lightning` and `pytorch_lightning`, which are twins and know nothing of each other: a
trainer of one takes no strategy of the other. What is meant is written here once, in classes without a base, and
`classes_for` joins them to the bases of the package that the user works with.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from turnout.backends.torch import TorchBackend, TorchConfig
from turnout.checkpoint import Checkpoint
from turnout.checks import check_integer, refused
from turnout.config import CheckpointUploadMode, ValidationTaskConfig
from turnout.environment import is_worker
from turnout.errors import MissingDependencyError, UnsupportedError, UsageError
from turnout.integrations.reporting import check_report_arguments
from turnout.integrations.torch import get_device
from turnout.session import active, get_context, report
from turnout.session.collective import SoloCollective
from turnout.session.events import RankInfo

if TYPE_CHECKING:
    import torch

__all__ = ["LightningClasses", "classes_for", "classes_of_imported", "prepare_trainer"]

logger = logging.getLogger(__name__)

_FACE = "turnout.lightning"
_PACKAGES = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
"""Each package's name for Python, and its name for pip; the first comes first where the program has said nothing."""
_OLDEST = (2, 2)
_REMEDY = f"pass Trainer(strategy={_FACE}.DDPStrategy()), or FSDPStrategy()"


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningClasses:
    """The classes of `turnout.lightning` for one of Lightning's two packages.

    Args:
        package: its name.
        DDPStrategy: every rank has the whole model; see `RanksStrategy`.
        FSDPStrategy: the ranks share the model out; see `ShardedRanksStrategy`.
        LightningEnvironment: see `RanksEnvironment`.
        ReportCallback: see `Reporting`.
    """

    package: str
    DDPStrategy: type[Any]  # Any: their bases are the user's package's
    FSDPStrategy: type[Any]
    LightningEnvironment: type[Any]
    ReportCallback: type[Any]


def classes_for(package: ModuleType | str) -> LightningClasses:
    """The classes for the package that is given, where a program imports both.

    Args:
        package: ``lightning``, ``lightning.pytorch`` or ``pytorch_lightning``, or its name.

    Raises:
        UsageError: it is none of these.
        MissingDependencyError: it is not installed, or too old.
    """
    name = package.__name__ if isinstance(package, ModuleType) else package
    name = "lightning.pytorch" if name == "lightning" else name
    if name not in _PACKAGES:
        raise refused("classes_for(): package", package, "takes lightning.pytorch or pytorch_lightning")
    return _classes(name)


def classes_of_imported() -> LightningClasses:
    """The classes for the package that the program has imported: for lightning.pytorch, if it is both or neither.

    Raises:
        MissingDependencyError: neither is installed, or it is too old.
    """
    for name in _PACKAGES:
        if name in sys.modules:
            return _classes(name)
    for name in _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return _classes(name)
    raise MissingDependencyError("lightning", "pip install lightning", _FACE)


@functools.cache
def _classes(name: str) -> LightningClasses:
    try:
        package = importlib.import_module(name)
        environments = importlib.import_module(f"{name}.plugins.environments")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(name, f"pip install {_PACKAGES[name]}", _FACE) from error
    version = package.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        needed = f"{_PACKAGES[name]}>={'.'.join(map(str, _OLDEST))}"
        raise MissingDependencyError(needed, f"pip install '{needed}'", f"{_FACE}, which finds {name} {version},")

    def joined(title: str, meaning: type[Any], base: type[Any]) -> type[Any]:
        described = {"__module__": _FACE, "__doc__": meaning.__doc__, "_package": name}
        return type(title, (meaning, base), described)

    return LightningClasses(
        package=name,
        DDPStrategy=joined("DDPStrategy", RanksStrategy, package.strategies.DDPStrategy),
        FSDPStrategy=joined("FSDPStrategy", ShardedRanksStrategy, package.strategies.FSDPStrategy),
        LightningEnvironment=joined("LightningEnvironment", RanksEnvironment, environments.LightningEnvironment),
        ReportCallback=joined("ReportCallback", Reporting, package.Callback),
    )


class RanksEnvironment:
    """The ranks of the run that trains, as Lightning asks for them; they are there already, and Lightning starts none.

    A strategy of `turnout.lightning` brings one along. It can be given to other strategies:
    ``Trainer(plugins=[LightningEnvironment()])``.
    """

    def __init__(self) -> None:
        super().__init__()
        with contextlib.suppress(UsageError):  # it is made outside of a run, to be used in one
            _tell_who_prints(get_context().get_world_rank())

    @property
    def creates_processes_externally(self) -> bool:
        """The ranks are there."""
        return True

    def world_size(self) -> int:
        """How many they are."""
        return get_context().get_world_size()

    def set_world_size(self, size: int) -> None:
        """The run alone says how many they are."""

    def global_rank(self) -> int:
        """This one's."""
        return get_context().get_world_rank()

    def set_global_rank(self, rank: int) -> None:
        """The run alone says which it is."""

    def local_rank(self) -> int:
        """This one's on its node."""
        return get_context().get_local_rank()

    def node_rank(self) -> int:
        """Its node's."""
        return get_context().get_node_rank()

    def teardown(self) -> None:
        """Leave the variables of the ranks as they are, which Lightning's own takes away."""


class RanksStrategy:
    """Lightning's `DDPStrategy` on the ranks of a run: their process group, their devices, their shares of the data.

    It takes Lightning's arguments. How the group is set up, its backend and its timeout, is
    `turnout.torch.TorchConfig`'s to say. In process the group is of one, so that what DDP would refuse on several
    ranks, as parameters that are not used, it refuses there too.
    """

    _package: ClassVar[str]

    @property
    def cluster_environment(self) -> RanksEnvironment | None:
        """The ranks of the run."""
        return self._ranks

    @cluster_environment.setter
    def cluster_environment(self, environment: Any) -> None:  # Any: Lightning's own, whichever package's
        if environment is not None and not isinstance(environment, RanksEnvironment):
            # What Lightning has found by the variables of this process, unless the user says otherwise.
            environment = _classes(self._package).LightningEnvironment()
        self._ranks: RanksEnvironment | None = environment

    @property
    def root_device(self) -> torch.device:
        """The device that this rank trains on."""
        return get_device()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How Lightning deals the rows of a data loader."""
        context = get_context()
        return {"num_replicas": context.get_world_size(), "rank": context.get_world_rank()}

    def setup_environment(self) -> None:
        """Find the process group of the ranks."""
        _require_group()
        super().setup_environment()  # type: ignore[misc]  # of the base that this class is joined to

    def setup(self, trainer: Any) -> None:  # Any: Lightning's, whichever package's
        """Set the model up for training."""
        if is_worker():
            # A rank is told by SIGTERM to unwind, when another has failed. Lightning's own handler would first meet the
            # others, and so wait for one that is gone, or raise what that comes to in place of what the rank is told.
            trainer._signal_connector._sigterm_notifier_fn = _leave_to_turnout
        super().setup(trainer)  # type: ignore[misc]  # as above

    def _configure_launcher(self) -> None:
        """There is nobody to launch."""


class ShardedRanksStrategy(RanksStrategy):
    """Lightning's `FSDPStrategy` on the ranks of a run, on CPUs too; else as `DDPStrategy`.

    With ``state_dict_type="sharded"`` every rank writes its shards into a folder of its own, which the report of
    `ReportCallback` puts together, so that the ranks need no common disk.
    """

    _keeps_own_path = False

    def broadcast(self, obj: Any, src: int = 0) -> Any:  # Any: whatever the ranks pass each other
        """What rank ``src`` has."""
        if self._keeps_own_path:
            return obj
        return super().broadcast(obj, src)  # type: ignore[misc]  # of the base that this class is joined to

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write this rank's part where this rank says."""
        with self._own_path():
            super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]  # as above

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **options: Any) -> Any:
        """Read it from where it lies for this rank."""
        with self._own_path():
            return super().load_checkpoint(checkpoint_path, *arguments, **options)  # type: ignore[misc]  # as above

    @contextlib.contextmanager
    def _own_path(self) -> Iterator[None]:
        """Lightning has all ranks use rank 0's path, which need not be one on other machines."""
        self._keeps_own_path = True
        try:
            yield
        finally:
            self._keeps_own_path = False

    def lightning_module_state_dict(self) -> Any:  # Any: a dict, by names of the model's
        """The model's part of a checkpoint."""
        base: Any = self  # Any: these are the base's
        if base._state_dict_type != "full" or self.root_device.type != "cpu":
            return super().lightning_module_state_dict()  # type: ignore[misc]  # as above
        with _whole_on_cpu(base.model):
            return base.model.state_dict()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:  # Any: torch's, or Lightning's around it
        """An optimizer's part of a checkpoint."""
        from torch.distributed.fsdp import FullyShardedDataParallel, OptimStateKeyType

        base: Any = self  # Any: these are the base's
        if base._state_dict_type != "full" or self.root_device.type != "cpu":
            state: dict[str, Any] = super().optimizer_state(optimizer)  # type: ignore[misc]  # as above
            return state
        with _whole_on_cpu(base.model):
            bare = getattr(optimizer, "_optimizer", optimizer)
            state = FullyShardedDataParallel.optim_state_dict(base.model, bare)
            if base.global_rank == 0:  # by number, as an optimizer of a model that is not sharded has it
                state = FullyShardedDataParallel.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, base.model)
        return state

    def _setup_model(self, model: Any) -> Any:  # Any: a module, before and after it is wrapped
        from torch.distributed.fsdp import FullyShardedDataParallel

        if self.root_device.type != "cpu" or any(
            isinstance(each, FullyShardedDataParallel) for each in model.modules()
        ):
            return super()._setup_model(model)  # type: ignore[misc]  # as above
        # Lightning passes an index, which the CPU has not, and without a device FSDP asks for an accelerator.
        wrapped = FullyShardedDataParallel(model, device_id=self.root_device, **self._fsdp_arguments())
        arguments: dict[str, Any] = self.kwargs  # type: ignore[has-type]  # the base's
        self.kwargs = {name: value for name, value in arguments.items() if name != "auto_wrap_policy"}  # has been used
        try:
            return super()._setup_model(wrapped)  # type: ignore[misc]  # as above
        finally:
            self.kwargs = arguments

    @contextlib.contextmanager
    def model_sharded_context(self) -> Iterator[None]:
        """Where the user wraps parts of the model."""
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import enable_wrap

        if self.root_device.type != "cpu":
            with super().model_sharded_context():  # type: ignore[misc]  # as above
                yield
            return
        arguments = self._fsdp_arguments()
        with enable_wrap(wrapper_cls=FullyShardedDataParallel, device_id=self.root_device, **arguments):
            yield

    def _fsdp_arguments(self) -> dict[str, Any]:
        base: Any = self  # Any: these are the base's
        return {
            "cpu_offload": base.cpu_offload,
            "mixed_precision": base.mixed_precision_config,
            "sharding_strategy": base.sharding_strategy,
            **base.kwargs,
        }


def _whole_on_cpu(model: Any) -> contextlib.AbstractContextManager[None, None]:
    """Where rank 0 is given the whole of a model that is on the CPU.

    Lightning has FSDP offload it to the CPU, which frees what is there already while it is being copied.
    """
    from torch.distributed.fsdp import (
        FullOptimStateDictConfig,
        FullStateDictConfig,
        FullyShardedDataParallel,
        StateDictType,
    )

    whole: Any = FullyShardedDataParallel.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(offload_to_cpu=False, rank0_only=True),
        FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=True),
    )
    return cast("contextlib.AbstractContextManager[None, None]", whole)


class Reporting:
    """Reports to the run, from every rank, the metrics that Lightning has logged, and a checkpoint with them.

    The metrics are ``trainer.callback_metrics``, with ``epoch`` and ``step``. The checkpoint's file, or with a sharded
    FSDP its folder, is ``checkpoint.ckpt`` (`CHECKPOINT_NAME`), which Lightning resumes from:
    ``trainer.fit(model, ckpt_path=...)``.

    A checkpoint of the end of an epoch is all that is needed to go on as if nothing had happened. One from within an
    epoch is so only if the data loader can be resumed, by ``state_dict`` and ``load_state_dict``; else Lightning begins
    the epoch's data anew.

    Args:
        checkpoint_upload_mode: when `turnout.report` returns, and who copies the files.
        validation: run the trainer's `turnout.ValidationConfig` on each checkpoint, with these arguments if any.
        after_train_epoch: report at the end of each epoch of training.
        after_validation: report at the end of each validation while training, but for the sanity check.
        every_n_train_steps: report after so many optimizer steps, within an epoch too; None does not.

    Raises:
        UsageError: an argument cannot be meant.
    """

    CHECKPOINT_NAME = "checkpoint.ckpt"

    def __init__(
        self,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        validation: bool | ValidationTaskConfig = False,
        *,
        after_train_epoch: bool = True,
        after_validation: bool = False,
        every_n_train_steps: int | None = None,
    ) -> None:
        super().__init__()
        check_report_arguments(checkpoint_upload_mode, validation, list(CheckpointUploadMode))
        flags: dict[str, Any] = {"after_train_epoch": after_train_epoch, "after_validation": after_validation}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise refused(f"ReportCallback(): {name}", value, "takes True or False")
        if every_n_train_steps is not None:
            remedy = "takes a whole number of at least 1, or None"
            field = "ReportCallback(): every_n_train_steps"
            every_n_train_steps = check_integer(field, every_n_train_steps, at_least=1, remedy=remedy)
        self._mode = checkpoint_upload_mode
        self._validation = validation
        self._after_train_epoch = after_train_epoch
        self._after_validation = after_validation
        self._every_n_train_steps = every_n_train_steps
        self._reported_step = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Lightning's hook, as the next ones; Any: its objects, of whichever package."""
        step = trainer.global_step
        if self._every_n_train_steps is None or step % self._every_n_train_steps or step == self._reported_step:
            return  # the step stays the same while gradients are accumulated
        if not (trainer.is_last_batch and self._after_train_epoch):  # else its end is about to report
            self._report(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, if the validation is one of training."""
        if self._after_validation and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report."""
        if self._after_train_epoch:
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        self._reported_step = trainer.global_step
        metrics = dict(trainer.callback_metrics)
        metrics.update(epoch=trainer.current_epoch, step=trainer.global_step)
        if self._mode is CheckpointUploadMode.NO_UPLOAD:
            name = f"epoch_{trainer.current_epoch:04d}-step_{trainer.global_step:08d}"
            folder = _folder_in_storage(name)
            self._save(trainer, folder)
            checkpoint = Checkpoint.from_directory(folder)
            report(metrics, checkpoint, name, self._mode, validation=self._validation)
            return
        folder = tempfile.mkdtemp(prefix="turnout-lightning-")
        try:
            self._save(trainer, folder)
            if not os.listdir(folder):  # the file is rank 0's, which the others wait for in the report
                report(metrics)
                return
            checkpoint = Checkpoint.from_directory(folder)
            report(metrics, checkpoint, None, self._mode, validation=self._validation)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # ASYNC has taken the files, and may be about to remove it too

    def _save(self, trainer: Any, folder: str) -> None:
        trainer.save_checkpoint(os.path.join(folder, self.CHECKPOINT_NAME), weights_only=False)


def prepare_trainer(trainer: Any) -> Any:  # Any: a Trainer of whichever package
    """Make sure that a trainer trains as this rank of the run, and not alone, nor with processes of its own.

    A trainer with a strategy of `turnout.lightning` does. Others are taken if they say the same of the ranks as the
    run: any that trains on one device in process, and under torchrun Lightning's own.

    Args:
        trainer: a ``Trainer`` of ``lightning.pytorch`` or ``pytorch_lightning``.

    Returns:
        The trainer.

    Raises:
        UsageError: outside a run, or it is no trainer, or it would train otherwise; the text says how to mend it.
    """
    context = get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    if not any(each.__module__.startswith(tuple(_PACKAGES)) for each in type(trainer).__mro__) or not hasattr(
        trainer, "strategy"
    ):
        kind = type(trainer).__qualname__
        raise UsageError(f"prepare_trainer(): trainer is a {kind}, and takes a Trainer of Lightning's")
    strategy = trainer.strategy
    _warn_of_second_checkpoints(trainer)
    if isinstance(strategy, RanksStrategy):
        return trainer
    kind = type(strategy).__name__
    if (trainer.global_rank, trainer.world_size) != (rank, world_size):
        raise UsageError(
            f"prepare_trainer(): with its strategy {kind} the trainer would train as rank {trainer.global_rank} of "
            f"{trainer.world_size}, and in the run this is rank {rank} of {world_size}; {_REMEDY}"
        )
    if getattr(strategy.launcher, "_start_method", "popen") != "popen":
        raise UsageError(
            f"prepare_trainer(): with its strategy {kind} the trainer would train in another process, from which "
            f"nothing is reported; {_REMEDY}"
        )
    shares = getattr(strategy, "distributed_sampler_kwargs", None)
    if world_size > 1 and shares != {"num_replicas": world_size, "rank": rank}:
        raise UsageError(
            f"prepare_trainer(): with its strategy {kind} this rank {rank} of {world_size} would read the data as "
            f"{shares}; {_REMEDY}"
        )
    return trainer


def _warn_of_second_checkpoints(trainer: Any) -> None:
    if get_context().get_world_rank() or not any(isinstance(each, Reporting) for each in trainer.callbacks):
        return
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "dirpath", "") is None:
            logger.warning(
                "Lightning keeps checkpoints of its own in %s, beside those that ReportCallback reports; "
                "Trainer(enable_checkpointing=False) keeps the latter alone",
                trainer.default_root_dir,
            )


def _require_group() -> None:
    """Have torch's process group of the ranks; in process one is made, of this one, which ends with the run.

    Raises:
        UsageError: there are several ranks and no group.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        return
    if get_context().get_world_size() > 1:
        raise UsageError(
            "there are several workers and no process group of torch's for Lightning to use; a "
            "turnout.torch.TorchTrainer makes one"
        )
    backend = TorchBackend(TorchConfig())
    backend.start(RankInfo(), SoloCollective())
    active().at_end(lambda: backend.stop(None))


def _folder_in_storage(name: str) -> str:
    storage = get_context().get_storage()
    if type(storage.filesystem).__name__ != "LocalFileSystem":
        raise UnsupportedError(
            "ReportCallback(checkpoint_upload_mode=NO_UPLOAD) has Lightning write into the run's folder, which must "
            f"lie on a disk, and lies on a {type(storage.filesystem).__name__}; use SYNC or ASYNC"
        )
    path: str = storage.checkpoint_path(name)
    return path


def _tell_who_prints(rank: int) -> None:
    """Lightning asks once, at its import, which rank it is on; on a forked rank that may have been before the fork."""
    module = sys.modules.get("lightning_utilities.core.rank_zero")
    if module is not None:
        module.rank_zero_only.rank = rank


def _leave_to_turnout(*_: object) -> None:
    """Stands in for a handler of Lightning's."""
