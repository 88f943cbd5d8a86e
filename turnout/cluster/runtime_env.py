"""Runtime environments for actors, with the user's own folders taken along."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from turnout.errors import UsageError

__all__ = ["sent_runtime_env"]

logger = logging.getLogger(__name__)


def sent_runtime_env(runtime_env: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A runtime environment as an actor can have it: local folders are stored in the cluster, as ``ray.init`` does it.

    The cluster forgets a folder some time after the last actor that uses it, so this is done for every attempt; one
    that is there already is not sent again.

    Args:
        runtime_env: as the user gave it, which is not changed; None for none.

    Raises:
        UsageError: it cannot be meant.
    """
    if runtime_env is None:
        return None
    import ray
    from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    node: Any = ray._private.worker.global_worker.node  # Any: it is there once the program has joined a cluster
    scratch = node.get_runtime_env_dir_path()
    try:
        environment = dict(runtime_env)
        for upload in (upload_py_modules_if_needed, upload_working_dir_if_needed):
            environment = upload(environment, include_gitignore=True, scratch_dir=scratch, logger=logger)
        environment.pop("excludes", None)
        return dict(ray.runtime_env.RuntimeEnv(**environment))
    except (ValueError, TypeError) as error:
        raise UsageError(f"RunConfig.worker_runtime_env={dict(runtime_env)!r}: {error}") from error
