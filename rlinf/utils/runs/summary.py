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
from rlinf.utils.runs.provenance import git_facts

FILE = "summary.json"
SCHEMA = 1
RUNNING, FINISHED, EVALUATED = "running", "finished", "evaluated"
STOPPED, FAILED, KILLED = "stopped", "failed", "killed"
PROMISED = (
    "recipe",
    "seed",
    "checkpoint",
    "global_step",
    "env_steps_per_second",
    "samples_per_second",
    "training_seconds",
    "wall_seconds",
    "checkpoint_failures",
    "initial_evaluation",
    "evaluation",
)
"""Keys that every summary has, besides `schema`, `status` and `run_dir`; None is not known."""


class RunSummary:
    """Collects the facts of a run and writes them.

    Args:
        folder: folder of the run.
        began: when the run began, in seconds since the epoch; now by default.
        facts: what is known at the beginning.
    """

    def __init__(self, folder: Path, began: float | None = None, **facts: Any):
        self.folder = folder
        self._begin = time.time() if began is None else began
        self.facts: dict[str, Any] = {
            **_nothing_known(folder),
            "command": sys.argv,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "began": self._begin,
            "git": git_facts(folder),
            **facts,
        }
        # Whoever looks at the folder meanwhile must not see the summary of an earlier run.
        self.write()

    def write(self, **facts: Any) -> Path:
        """Add facts and write the file, whole or not at all; a full disk costs a warning."""
        self.facts |= facts
        self.facts["wall_seconds"] = round(time.time() - self._begin, 3)
        return _replace(self.folder, self.facts)


def _nothing_known(folder: Path) -> dict[str, Any]:
    """Return what a summary has before anything is known of the run."""
    first = {"schema": SCHEMA, "status": RUNNING, "run_dir": str(folder)}
    return first | dict.fromkeys(PROMISED)


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
        facts = _nothing_known(folder)
    if facts.get("status") != RUNNING:
        return False
    _replace(folder, facts | {"status": status} | ({} if error is None else {"error": error}))
    return True


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run, None if it has none.

    A run that says that it is running, while nobody holds the lock of its folder, was killed.
    """
    try:
        facts = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict):
        return None
    if facts.get("status") == RUNNING and holder_of(folder) is None:
        facts["status"] = KILLED
    return facts


def status_of(folder: Path) -> str | None:
    """Return what became of a run; None if its folder does not say."""
    facts = read_summary(folder)
    return None if facts is None else facts.get("status")
