"""`summary.json`: what a run is remembered by. It is there however the run ends."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rlinf.utils.disk import tolerate_disk_errors
from rlinf.utils.runs.lock import holder_of

FILE = "summary.json"
SCHEMA = 1
RUNNING, FINISHED, EVALUATED = "running", "finished", "evaluated"
STOPPED, FAILED, KILLED = "stopped", "failed", "killed"


class RunSummary:
    """Collects the facts of a run and writes them.

    Args:
        folder: folder of the run.
        facts: what is known at the beginning.
    """

    def __init__(self, folder: Path, **facts: Any):
        self.folder = folder
        self._begin = time.time()
        self.facts: dict[str, Any] = {
            "schema": SCHEMA,
            "status": RUNNING,
            "run_dir": str(folder),
            "command": sys.argv,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "began": self._begin,
            **facts,
        }
        # Whoever looks at the folder meanwhile must not see the summary of an earlier run.
        self.write()

    def write(self, **facts: Any) -> Path:
        """Add facts and write the file, whole or not at all; a full disk costs a warning."""
        self.facts |= facts
        self.facts["wall_seconds"] = round(time.time() - self._begin, 3)
        return _replace(self.folder, self.facts)


def _replace(folder: Path, facts: dict[str, Any]) -> Path:
    """Write a summary, whole or not at all."""
    path = folder / FILE
    part = path.with_suffix(".part")
    with tolerate_disk_errors(str(path)):
        part.write_text(json.dumps(facts, indent=2) + "\n")
        os.replace(part, path)
    return path


def add_to_summary(folder: Path, **facts: Any) -> None:
    """Add facts to the summary of a run that has ended."""
    known = json.loads((folder / FILE).read_text())
    _replace(folder, known | facts)


def close_summary(folder: Path, status: str, error: str | None = None) -> bool:
    """Say what became of a run that could not say it itself.

    Returns:
        Whether it had not: its summary said that it is running, or there was none.
    """
    try:
        facts = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        facts = {"schema": SCHEMA, "status": RUNNING, "run_dir": str(folder)}
    if facts.get("status") != RUNNING:
        return False
    _replace(folder, facts | {"status": status} | ({} if error is None else {"error": error}))
    return True


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run, None if it has none.

    A run that says that it is running, while nobody holds the lock of its folder, was killed.
    """
    try:
        facts: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    if facts.get("status") == RUNNING and holder_of(folder) is None:
        facts["status"] = KILLED
    return facts


def status_of(folder: Path) -> str | None:
    """Return what became of a run; None if its folder does not say."""
    facts = read_summary(folder)
    return None if facts is None else facts.get("status")
