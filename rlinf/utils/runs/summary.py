"""`summary.json`: what a run is remembered by. It is there however the run ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

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
        self._complained = False
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
        path = self.folder / FILE
        part = path.with_suffix(".part")
        try:
            part.write_text(json.dumps(self.facts, indent=2) + "\n")
            os.replace(part, path)
        except OSError as error:
            if not self._complained:
                self._complained = True
                print(f"warning: {path} cannot be written: {error}", file=sys.stderr, flush=True)
        return path


def close_summary(folder: Path, status: str, error: str | None = None) -> None:
    """Say what became of a run whose summary still says that it is running."""
    path = folder / FILE
    try:
        facts = json.loads(path.read_text())
    except FileNotFoundError:
        facts = {"schema": SCHEMA, "status": RUNNING, "run_dir": str(folder)}
    except (OSError, ValueError):
        return
    if facts.get("status") != RUNNING:
        return
    facts |= {"status": status} | ({} if error is None else {"error": error})
    part = path.with_suffix(".part")
    with contextlib.suppress(OSError):
        part.write_text(json.dumps(facts, indent=2) + "\n")
        os.replace(part, path)


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
