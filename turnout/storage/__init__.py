"""A run's folder: storing, committing, keeping and reading back, all without knowing of sessions or controllers.

Places
    `StorageLocation` is a path on some filesystem, with the few operations that are safe to be cut off, as is
    `remove_tree` for local folders;
    `RunFolder` knows what lies where in a run's folder, and counts its attempts in ``run.json``;
    `Lease` gives a run to one driver at a time.

Writing
    `commit` makes the folders of many ranks one checkpoint, or nothing (`CommitRequest`, `Meeting`); `stage` takes a
    rank's files aside for a commit that comes later; `check_source` refuses folders that cannot be meant;
    `update_record` merges the outcome of a validation; `Retention` removes what need not be kept;
    `MetricsHistory` appends every report, and seals them in the end; `RunLogs` keeps what ranks print.

Reading
    `committed` lists the checkpoints that count (each a `CommitRecord`), `newest_verified` gives the one to go on from,
    `verify` says why a folder is not what its record says, `clean_uncommitted` and `remove_superseded` tidy up;
    `read_history` and `history_dataframe` give the reports back, `read_log` what a rank printed; `best_first` ranks.

The order for a driver: ``lease.acquire()``, ``run.create(spec)``, and for every attempt ``begin_attempt``,
``clean_uncommitted``, ``newest_verified``, ``set_resume_point(resume_point(record))``, then the workers.
"""

from __future__ import annotations

from turnout.retry import RetryPolicy
from turnout.storage.commit import FAILPOINTS, CommitRequest, Meeting, check_source, commit, stage
from turnout.storage.history import HistoryRow, MetricsHistory, history_dataframe, last_metrics, read_history
from turnout.storage.lease import DURATION_S, Holder, Lease
from turnout.storage.location import Entry, StorageLocation, remove_tree
from turnout.storage.logs import RunLogs, read_log
from turnout.storage.reading import (
    clean_uncommitted,
    committed,
    newest_verified,
    next_index,
    remove_superseded,
    resume_point,
    set_aside,
)
from turnout.storage.record import (
    RECORD_FILE,
    CommitRecord,
    FileEntry,
    checkpoint_of,
    read_record,
    remove_checkpoint,
    reported,
    update_record,
    verify,
    write_record,
)
from turnout.storage.retention import Retention, best_first, choose_deletions, score_of
from turnout.storage.run_folder import Attempt, ResumePoint, RunFolder, RunInfo, checkpoint_name
from turnout.storage.sources import SourceFile, scan

__all__ = [
    "DURATION_S",
    "FAILPOINTS",
    "RECORD_FILE",
    "Attempt",
    "CommitRecord",
    "CommitRequest",
    "Entry",
    "FileEntry",
    "HistoryRow",
    "Holder",
    "Lease",
    "Meeting",
    "MetricsHistory",
    "ResumePoint",
    "Retention",
    "RetryPolicy",
    "RunFolder",
    "RunInfo",
    "RunLogs",
    "SourceFile",
    "StorageLocation",
    "best_first",
    "check_source",
    "checkpoint_name",
    "checkpoint_of",
    "choose_deletions",
    "clean_uncommitted",
    "commit",
    "committed",
    "history_dataframe",
    "last_metrics",
    "newest_verified",
    "next_index",
    "read_history",
    "read_log",
    "read_record",
    "remove_checkpoint",
    "remove_superseded",
    "remove_tree",
    "reported",
    "resume_point",
    "scan",
    "score_of",
    "set_aside",
    "stage",
    "update_record",
    "verify",
    "write_record",
]
