"""Where a process of the run puts its files: in the run's folders, or beside until they are taken.

The driver marks the folders of a run. A node that sees the mark shares the file system, and its
processes write where they are told. On any other node the same path leads elsewhere, so they write
into a folder of their own on that node, and the driver takes the files from there (`RunFiles`).
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from rlinf.scheduler.errors import ClusterError


def own_folder() -> Path:
    """Return the folder that all runs of this user share on this machine."""
    return Path(tempfile.gettempdir()) / f"rlinf-{os.getuid()}"


def make_own_folder() -> None:
    """Make that folder for this user alone.

    Whoever else owned it could decide what these runs read and write.

    Raises:
        ClusterError: it is another user's, or a link.
    """
    folder = own_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(folder)
    advice = (
        "set cluster.log_dir to a folder that you may write to, or TMPDIR to another place for "
        "temporary files"
    )
    if not stat.S_ISDIR(found.st_mode):
        raise ClusterError(f"{folder}, for the files of this user's runs, is a link; {advice}")
    if found.st_uid != os.getuid():
        raise ClusterError(
            f"{folder}, for the files of the runs of user {os.getuid()}, belongs to user "
            f"{found.st_uid}; {advice}"
        )
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def mark_of(run_id: str) -> str:
    """Return the name of the empty file that marks a folder of a run."""
    return f".rlinf-{run_id}"


def staging(run_id: str) -> Path:
    """Return where a node that does not share the run's folders keeps its files meanwhile."""
    return own_folder() / f"{run_id}.files"


def staged(path: str | Path, run_id: str) -> Path:
    """Return where that node keeps what belongs to a path of the run."""
    return staging(run_id) / Path(path).relative_to("/")


def place_on_node(path: str | Path, run_id: str) -> Path:
    """Return where to write what belongs to a path of the run, on the node of this process."""
    path = Path(path)
    mark = mark_of(run_id)
    if any((folder / mark).exists() for folder in (path, *path.parents)):
        return path
    return staged(path, run_id)
