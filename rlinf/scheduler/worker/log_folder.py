"""The folder of a run's logs: where it is by default, and that this user can write to it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from rlinf.scheduler.errors import ClusterError

_ADVICE = (
    "set cluster.log_dir (or distributed_log_dir of Cluster, or runner.logger.log_path of a "
    "recipe) to a folder that you may write to, or TMPDIR to another place for temporary files"
)


def default_log_dir(run_id: str) -> Path:
    """Return where a run logs that names no folder: in one of its user's own, `rlinf-<uid>`."""
    return _own_folder() / run_id


def _own_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"rlinf-{os.getuid()}"


def prepare_log_dir(folder: Path) -> None:
    """Make the folder of a run's logs on this machine.

    The one that all runs of a user share by default is for that user alone: whoever owns it could
    otherwise decide what these runs read and write.

    Raises:
        ClusterError: it cannot be made or written to, or is another user's.
    """
    own = _own_folder()
    try:
        if folder.parent == own:
            _make_private(own)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"the folder of logs {folder} cannot be made: {error}; {_ADVICE}") from (
            error
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ClusterError(
            f"user {os.getuid()} may not write to the folder of logs {folder}; {_ADVICE}"
        )


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise ClusterError(f"{folder}, for the logs of this user's runs, is a link; {_ADVICE}")
    if found.st_uid != os.getuid():
        raise ClusterError(
            f"{folder}, for the logs of the runs of user {os.getuid()}, belongs to user "
            f"{found.st_uid}; {_ADVICE}"
        )
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)
