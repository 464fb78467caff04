"""The lock of a run's folder: one run at a time writes there, and others can see whether it lives.

The kernel frees it when the process ends, however that happens.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path
from typing import Any

FILE = ".lock"


class RunInUse(RuntimeError):
    """Another run writes into the folder."""


class RunLock:
    """Locks the folder of a run until `release`, or the end of this process.

    Args:
        folder: the folder, which must be there.

    Raises:
        RunInUse: another run has it.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = open(folder / FILE, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = _read(self._file.read())
            self._file.close()
            raise RunInUse(
                f"{folder} is in use by the run of process {holder.get('pid', '?')} on "
                f"{holder.get('host', '?')}; set another runner.run_dir, or leave it out for a "
                "folder of its own"
            ) from None
        self._file.seek(0)
        self._file.truncate()
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        self._file.write(json.dumps(facts) + "\n")
        self._file.flush()
        _held.add(self)

    def release(self) -> None:
        """Let others have the folder."""
        _held.discard(self)
        self._file.close()

    def leave_to_parent(self) -> None:
        """Close the file in a forked child, which would otherwise keep the lock."""
        self._file.close()


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_held):
        lock.leave_to_parent()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def holder_of(folder: Path) -> dict[str, Any] | None:
    """Return who holds the lock of a folder: pid, host, since; None if nobody does.

    Locks of another host cannot be seen on every file system: there, the last holder counts.
    """
    try:
        with open(folder / FILE, encoding="utf-8") as file:
            holder = _read(file.read())
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return holder
    except OSError:
        return None
    return None if holder.get("host") in (socket.gethostname(), None) else holder


def _read(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError:
        # It is being written, or was cut off by a full disk.
        return {}
