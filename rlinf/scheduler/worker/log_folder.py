"""The folder of a run's logs: where it is by default, and that this user can write to it."""

from __future__ import annotations

import os
from pathlib import Path

from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.places import make_own_folder, own_folder

_ADVICE = (
    "set cluster.log_dir (or distributed_log_dir of Cluster, or runner.logger.log_path of a "
    "recipe) to a folder that you may write to, or TMPDIR to another place for temporary files"
)


def default_log_dir(run_id: str) -> Path:
    """Return where a run logs that names no folder: in one of its user's own, `rlinf-<uid>`."""
    return own_folder() / run_id


def prepare_log_dir(folder: Path) -> None:
    """Make the folder of a run's logs on this machine.

    Raises:
        ClusterError: it cannot be made or written to, or is another user's.
    """
    try:
        if own_folder() in folder.parents:
            make_own_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"the folder of logs {folder} cannot be made: {error}; {_ADVICE}") from (
            error
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ClusterError(
            f"user {os.getuid()} may not write to the folder of logs {folder}; {_ADVICE}"
        )
