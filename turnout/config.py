"""What a user configures a run with: frozen values that check themselves when they are built and do nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar
from urllib.parse import unquote

from turnout.callback import UserCallback
from turnout.checks import (
    check_choice,
    check_file_name,
    check_filesystem,
    check_integer,
    check_mapping,
    check_number,
    check_text,
    refused,
)
from turnout.errors import UnsupportedError
from turnout.filesystem import redacted

__all__ = [
    "BackendConfig",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "DataConfig",
    "FailureConfig",
    "LoggingConfig",
    "PreemptionInfo",
    "RunConfig",
    "ScalingConfig",
    "TrainRunContext",
    "ValidationConfig",
    "ValidationTaskConfig",
]

_PLACEMENT_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class _Config:
    """A `repr` that reads as the constructor: the fields that differ from their defaults, and no secret of a URI."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            if default is MISSING or type(value) is not type(default) or value != default:
                is_uri = isinstance(value, str) and "://" in value
                shown.append(f"{item.name}={(redacted(value) if is_uri else value)!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _set(self, name: str, value: object) -> None:
        """Put the checked form of a field in place, while the frozen object is being built."""
        object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, repr=False)
class ScalingConfig(_Config):
    """How many workers train, and what each of them needs.

    Args:
        num_workers: 0 trains in the current process; N on N workers; ``(min, max)`` on as many as there are.
        use_gpu: give each worker one GPU, or as many as ``resources_per_worker["GPU"]`` says.
        resources_per_worker: resources of each worker by name, for example ``{"CPU": 4}``.
        placement_strategy: how workers are laid on nodes: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.
        accelerator_type: a kind of accelerator that each worker's node must have, as Ray names it.
        label_selector: labels that a worker's node must carry: one dict for all, or a list with one a worker.
        controller: the name of the controller that places the workers; None means ``"ray"``. Not used where
            ``num_workers=0``.
        use_tpu: not supported.
        topology: not supported.
        elastic_resize_monitor_interval_s: seconds between two looks at whether an elastic run could grow.

    Raises:
        UsageError: a field cannot be meant.
        UnsupportedError: ``use_tpu`` or ``topology`` is set.
    """

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    label_selector: dict[str, str] | list[dict[str, str]] | None = None
    controller: str | None = None
    use_tpu: bool = False
    topology: str | None = None
    elastic_resize_monitor_interval_s: float = 60.0

    def __post_init__(self) -> None:
        if self.use_tpu or self.topology is not None:
            raise UnsupportedError(
                "ScalingConfig: use_tpu and topology are not supported; Turnout drives CPUs and GPUs"
            )
        self._set("num_workers", _check_num_workers(self.num_workers))
        if not isinstance(self.use_gpu, bool):
            raise refused("ScalingConfig.use_gpu", self.use_gpu, "takes True or False")
        self._check_resources()
        check_choice("ScalingConfig.placement_strategy", self.placement_strategy, _PLACEMENT_STRATEGIES)
        if self.accelerator_type is not None:
            check_text("ScalingConfig.accelerator_type", self.accelerator_type, "the name of an accelerator")
        if self.controller is not None:
            check_text("ScalingConfig.controller", self.controller, "the name of a controller")
        self._check_labels()
        interval = check_number(
            "ScalingConfig.elastic_resize_monitor_interval_s",
            self.elastic_resize_monitor_interval_s,
            at_least=0,
            unit="seconds",
        )
        self._set("elastic_resize_monitor_interval_s", interval)

    @property
    def min_workers(self) -> int:
        """The fewest workers that the run may train on."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        """The most workers that the run may train on."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    def _check_resources(self) -> None:
        resources = self.resources_per_worker
        if resources is None:
            return
        check_mapping("ScalingConfig.resources_per_worker", resources, 'for example {"CPU": 4}')
        for name, amount in resources.items():
            check_number(f"ScalingConfig.resources_per_worker[{name!r}]", amount, at_least=0, unit="units")
        if self.use_gpu and resources.get("GPU", 1) == 0:
            raise refused("ScalingConfig.resources_per_worker", resources, "gives no GPU, but use_gpu=True; drop one")
        if not self.use_gpu and resources.get("GPU", 0) > 0:
            raise refused("ScalingConfig.resources_per_worker", resources, "asks for GPUs; set use_gpu=True as well")

    def _check_labels(self) -> None:
        labels = self.label_selector
        if labels is None:
            return
        for each in labels if isinstance(labels, list) else [labels]:
            check_mapping("ScalingConfig.label_selector", each, "node labels that a worker needs")
        if isinstance(labels, list) and len(labels) != self.max_workers:
            raise refused(
                "ScalingConfig.label_selector", labels, f"holds one dict a worker, so {self.max_workers} of them"
            )


@dataclass(frozen=True, slots=True, repr=False)
class FailureConfig(_Config):
    """How often a run is started again, by kind of failure. -1 means without limit.

    Args:
        max_failures: retries after the train function raised or a rank died.
        controller_failure_limit: retries after a group of workers could not be started. Without a limit too, one that
            has failed twice in a row for a cause that lasts, such as a broken runtime environment, is not tried again.
        max_preemption_failures: retries after machines were taken away.
        preemption_grace_s: seconds that ranks may go on after the deadline of a notice, to save their state; after the
            notice itself, where it names no deadline and this is above 0. A machine that goes ends them anyway.
        relax_collectives_on_preemption: let reports pass without the ranks that are going.
    """

    max_failures: int = 0
    controller_failure_limit: int = -1
    max_preemption_failures: int = -1
    preemption_grace_s: float = 0.0
    relax_collectives_on_preemption: bool = False

    def __post_init__(self) -> None:
        for name in ("max_failures", "controller_failure_limit", "max_preemption_failures"):
            remedy = "takes a whole number of retries: 0 for none, -1 for no limit"
            self._set(name, check_integer(f"FailureConfig.{name}", getattr(self, name), at_least=-1, remedy=remedy))
        grace = check_number("FailureConfig.preemption_grace_s", self.preemption_grace_s, at_least=0, unit="seconds")
        self._set("preemption_grace_s", grace)


@dataclass(frozen=True, slots=True, repr=False)
class CheckpointConfig(_Config):
    """Which checkpoints are kept, and how they are written and verified.

    Args:
        num_to_keep: how many are kept; None keeps all. The newest is kept besides, whatever its score.
        checkpoint_score_attribute: the metric that ranks them, nested ones as ``"eval/loss"``; None ranks by age.
        checkpoint_score_order: whether ``"max"`` or ``"min"`` is best. A missing or NaN score ranks last in both.
        verify: how a checkpoint is verified before it is resumed from: ``"full"`` by checksums, ``"size"`` by sizes,
            ``"auto"`` by checksums once per driver on local storage and by sizes elsewhere.
        max_pending_uploads: how many ASYNC reports may be under way before `report` waits.
        drain_timeout_s: seconds that pending uploads get when a run is interrupted.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    verify: str = "auto"
    max_pending_uploads: int = 1
    drain_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.num_to_keep is not None:
            remedy = "takes a whole number of at least 1, or None to keep all"
            kept = check_integer("CheckpointConfig.num_to_keep", self.num_to_keep, at_least=1, remedy=remedy)
            self._set("num_to_keep", kept)
        if self.checkpoint_score_attribute is not None:
            check_text(
                "CheckpointConfig.checkpoint_score_attribute", self.checkpoint_score_attribute, "a metric's name"
            )
        check_choice("CheckpointConfig.checkpoint_score_order", self.checkpoint_score_order, ("max", "min"))
        check_choice("CheckpointConfig.verify", self.verify, ("auto", "full", "size"))
        remedy = "takes a whole number of at least 1"
        pending = check_integer(
            "CheckpointConfig.max_pending_uploads", self.max_pending_uploads, at_least=1, remedy=remedy
        )
        self._set("max_pending_uploads", pending)
        drain = check_number("CheckpointConfig.drain_timeout_s", self.drain_timeout_s, above=0, unit="seconds")
        self._set("drain_timeout_s", drain)


@dataclass(frozen=True, slots=True, repr=False)
class DataConfig(_Config):
    """How data sets are dealt to ranks.

    Args:
        datasets_to_split: ``"all"``, or the names of those that are cut; the others are whole on each rank.
        execution_options: Ray Data's `ExecutionOptions` for Ray data sets, or a dict of them by data set; one that it
            leaves out runs with its own. Refused where none of the data is Ray's.
        enable_shard_locality: read a Ray data set's blocks where they lie.
        equal: give each rank the same number of rows and leave the remainder out; False gives every row exactly once.
    """

    datasets_to_split: str | list[str] = "all"
    execution_options: Any = None  # Any: a type of Ray Data's
    enable_shard_locality: bool = True
    equal: bool = True

    def __post_init__(self) -> None:
        names = self.datasets_to_split
        if names != "all" and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise refused("DataConfig.datasets_to_split", names, 'takes "all" or a list of data set names')


@dataclass(frozen=True, slots=True, repr=False)
class LoggingConfig(_Config):
    """How much Turnout logs on the console during `fit()`.

    Args:
        log_level: a standard level's name, in any case.
    """

    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if isinstance(self.log_level, str):
            self._set("log_level", self.log_level.upper())
        check_choice("LoggingConfig.log_level", self.log_level, _LOG_LEVELS)


@dataclass(frozen=True, slots=True, repr=False)
class ValidationTaskConfig(_Config):
    """The arguments and time limit of one validation.

    Args:
        fn_kwargs: keyword arguments for `ValidationConfig.fn`, over those of the run; values that JSON can hold.
        timeout_s: seconds that it may take; None means no limit.
    """

    fn_kwargs: dict[str, Any] | None = None  # Any: the user's own arguments
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        self._set("fn_kwargs", {} if self.fn_kwargs is None else self.fn_kwargs)
        check_mapping("ValidationTaskConfig.fn_kwargs", self.fn_kwargs, "keyword arguments of the validation function")
        if self.timeout_s is not None:
            limit = check_number("ValidationTaskConfig.timeout_s", self.timeout_s, above=0, unit="seconds")
            self._set("timeout_s", limit)


@dataclass(frozen=True, slots=True, repr=False)
class ValidationConfig(_Config):
    """What ``report(..., validation=True)`` runs beside training, on the committed checkpoint.

    In this process and under torchrun it runs in line, on rank 0. On the process track it runs in a process of its own,
    one checkpoint after another, and a checkpoint is not removed before. A run that has trained waits for what is left
    at its end, each as long as its ``timeout_s``; one that has failed waits for `CheckpointConfig.drain_timeout_s`; one
    that is interrupted does not wait. What is given up is made up for when the run is entered again.

    Args:
        fn: called as ``fn(checkpoint, **fn_kwargs)``; returns the metrics that are merged into the checkpoint's.
        task_config: the default arguments and time limit.
        ray_remote_kwargs: options of the Ray task that runs it, on the Ray track.
    """

    fn: Callable[..., dict[str, Any]]  # Any: a metric is whatever JSON can hold
    task_config: ValidationTaskConfig | None = None
    ray_remote_kwargs: dict[str, Any] | None = None  # Any: Ray's own options

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise refused("ValidationConfig.fn", self.fn, "takes a function of a checkpoint that returns a dict")
        _check_instance("ValidationConfig.task_config", self.task_config, ValidationTaskConfig)
        if self.ray_remote_kwargs is not None:
            check_mapping("ValidationConfig.ray_remote_kwargs", self.ray_remote_kwargs, "options of a Ray task")


@dataclass(frozen=True, slots=True, repr=False)
class RunConfig(_Config):
    """A run's name, where it is stored, and how it fails, logs and is watched.

    Args:
        name: the run's name, and its folder's under ``storage_path``; the same name again resumes the run. None makes
            one of the time and a random suffix.
        storage_path: a local path or a URI; relative paths and ``~`` are resolved here. None keeps an in-process run
            in memory.
        storage_filesystem: a `pyarrow.fs.FileSystem` or an fsspec filesystem that ``storage_path`` is a path on.
        failure_config: how often the run is started again.
        checkpoint_config: which checkpoints are kept.
        callbacks: instances of `UserCallback`.
        worker_runtime_env: a Ray runtime environment for the workers, on the Ray track.
        logging_config: how much is logged; None shows INFO if the program has configured no logging itself.
        on_existing: what a run that exists already means: ``"resume"`` goes on, ``"error"`` refuses, ``"overwrite"``
            starts anew.
        start_timeout_s: seconds to wait for the workers' resources; None waits for as long as it takes.
        stall_timeout_s: seconds that ranks may wait on each other before their stacks are shown.
        stall_action: what happens then: ``"warn"`` or ``"fail"``.

    Raises:
        UsageError: a field cannot be meant.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None  # Any: pyarrow's or fsspec's; neither is imported for it
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    callbacks: Sequence[UserCallback] | None = None
    worker_runtime_env: dict[str, Any] | None = None  # Any: Ray's own format
    logging_config: LoggingConfig | None = None
    on_existing: str = "resume"
    start_timeout_s: float | None = None
    stall_timeout_s: float = 300.0
    stall_action: str = "warn"

    def __post_init__(self) -> None:
        if self.name is not None:
            check_file_name("RunConfig.name", self.name, "a run's name")
        if self.storage_filesystem is not None:
            check_filesystem("RunConfig.storage_filesystem", self.storage_filesystem)
        if self.storage_filesystem is not None and self.storage_path is None:
            raise refused(
                "RunConfig.storage_filesystem", self.storage_filesystem, "set storage_path, a path on it, too"
            )
        if self.storage_path is not None:
            on_filesystem = self.storage_filesystem is not None
            self._set("storage_path", normalized_storage_path(self.storage_path, on_filesystem=on_filesystem))
        _check_instance("RunConfig.failure_config", self.failure_config, FailureConfig)
        _check_instance("RunConfig.checkpoint_config", self.checkpoint_config, CheckpointConfig)
        _check_instance("RunConfig.logging_config", self.logging_config, LoggingConfig)
        callbacks = self.callbacks
        if callbacks is not None and not (
            isinstance(callbacks, (list, tuple)) and all(isinstance(each, UserCallback) for each in callbacks)
        ):
            raise refused("RunConfig.callbacks", callbacks, "takes a list of instances of turnout.UserCallback")
        if self.worker_runtime_env is not None:
            check_mapping("RunConfig.worker_runtime_env", self.worker_runtime_env, "a Ray runtime environment")
        check_choice("RunConfig.on_existing", self.on_existing, ("resume", "error", "overwrite"))
        if self.start_timeout_s is not None:
            start = check_number("RunConfig.start_timeout_s", self.start_timeout_s, above=0, unit="seconds")
            self._set("start_timeout_s", start)
        stall = check_number("RunConfig.stall_timeout_s", self.stall_timeout_s, above=0, unit="seconds")
        self._set("stall_timeout_s", stall)
        check_choice("RunConfig.stall_action", self.stall_action, ("warn", "fail"))


@dataclass(frozen=True, slots=True, repr=False)
class BackendConfig(_Config):
    """The base of what configures a framework's process group (`turnout.torch.TorchConfig` and others)."""

    backend_class: ClassVar[str | None] = None
    """Where the `turnout.backends.base.Backend` of this configuration stands, as ``"module:Class"``; None for none."""
    preload: ClassVar[tuple[str, ...]] = ()
    """The framework's modules that a rank begins with; a controller can have them imported before."""
    imported_later: ClassVar[tuple[str, ...]] = ()
    """What most train functions come to import besides; worth it where one import serves many ranks."""
    shows_all_gpus: ClassVar[bool] = False
    """Whether a rank sees the GPUs of all ranks of its node, and takes that at its local rank; else its own alone."""


class CheckpointUploadMode(Enum):
    """When `report` returns, and who copies the checkpoint to storage."""

    ASYNC = "ASYNC"
    """Returns once the files are taken; they are committed in the background, in order."""
    SYNC = "SYNC"
    """Returns once the checkpoint is committed."""
    NO_UPLOAD = "NO_UPLOAD"
    """The files are in storage already, inside the run's folder; they are committed where they are."""

    def default_delete_local_checkpoint_after_upload(self) -> bool:
        """Whether `report` removes the caller's folder when the call does not say."""
        return self is CheckpointUploadMode.ASYNC


class CheckpointConsistencyMode(Enum):
    """What `get_all_reported_checkpoints` waits for."""

    COMMITTED = "COMMITTED"
    """For the reports that this rank has made to be committed."""
    VALIDATED = "VALIDATED"
    """For their validations to have ended as well."""


@dataclass(frozen=True, slots=True, repr=False)
class PreemptionInfo(_Config):
    """A notice that machines of this run will be taken away.

    Args:
        deadline_ms: when, in milliseconds since the epoch; None where it is not known.
        preempted_node_to_ranks: the world ranks on each node that goes, by node id.
    """

    deadline_ms: int | None = None
    preempted_node_to_ranks: dict[str, list[int]] = field(default_factory=dict)

    @property
    def preempted_node_ids(self) -> list[str]:
        """The nodes that go, sorted."""
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        """The world ranks that go, sorted."""
        return sorted(rank for ranks in self.preempted_node_to_ranks.values() for rank in ranks)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TrainRunContext(_Config):
    """What a callback is told of the run that it watches.

    Args:
        run_id: distinct for every `fit()`.
        run_config: with the name and storage path that the run goes by.
        train_loop_config: as it was given to the trainer.
        scaling_config: with the overrides of the environment applied.
        backend_config: the framework's, if any.
        dataset_config: how data is dealt.
    """

    run_id: str
    run_config: RunConfig
    train_loop_config: Any  # Any: the user's own
    scaling_config: ScalingConfig
    backend_config: BackendConfig | None
    dataset_config: DataConfig

    def get_run_config(self) -> RunConfig:
        """The run's configuration, as in `ray.train`."""
        return self.run_config


def normalized_storage_path(path: str | os.PathLike[str], *, on_filesystem: bool = False) -> str:
    """The one spelling of a storage path: a relative path, ``~``, a trailing slash and ``file://`` all name the same.

    Args:
        path: a local path or a URI.
        on_filesystem: whether it is a path on a filesystem of the user's, and so neither local nor a URI.

    Raises:
        UsageError: it is no path, or blank.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    check_text("storage_path", text, "a local path or a URI such as s3://bucket/folder")
    if isinstance(path, os.PathLike) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]", text):
        raise refused("storage_path", path, "a path object folds the slashes of a URI; pass it as text")
    if "\0" in text:
        raise refused("storage_path", text, "a path holds no NUL character")
    if on_filesystem:
        if "://" in text:
            raise refused("storage_path", text, "with storage_filesystem it is a path on that filesystem, and no URI")
        return text.rstrip("/") or "/"
    scheme, separator, rest = text.partition("://")
    if not separator:
        return os.path.abspath(os.path.expanduser(text))
    if scheme == "file":
        host, _, path_on_host = rest.partition("/")
        if host not in ("", "localhost"):
            raise refused("storage_path", text, f"names the host {host!r}; a local file's URI has three slashes")
        return os.path.abspath("/" + unquote(path_on_host))
    if not scheme or not rest.strip("/"):
        raise refused("storage_path", text, "a URI has a scheme and a place, such as s3://bucket/folder")
    return text.rstrip("/")


def _check_num_workers(value: Any) -> int | tuple[int, int]:
    remedy = (
        "takes 0 (train in this process), a whole number of workers, or a tuple (min, max) with 1 <= min <= max "
        "for an elastic run"
    )
    if not isinstance(value, tuple):
        return check_integer("ScalingConfig.num_workers", value, at_least=0, remedy=remedy)
    if len(value) != 2:
        raise refused("ScalingConfig.num_workers", value, remedy)
    low, high = (check_integer("ScalingConfig.num_workers", each, at_least=1, remedy=remedy) for each in value)
    if low > high:
        raise refused("ScalingConfig.num_workers", value, remedy)
    return low, high


def _check_instance(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected) and value is not None:
        raise refused(name, value, f"takes a turnout.{expected.__name__}")
