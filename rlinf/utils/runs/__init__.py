"""Folders of runs: what lies where, who uses one, and what became of each."""

from rlinf.utils.runs.folders import (
    LATEST,
    experiment_runs,
    find_run,
    new_evaluation_folder,
    new_run_folder,
    point_latest_to,
)
from rlinf.utils.runs.lock import RunInUse, RunLock
from rlinf.utils.runs.summary import RunSummary, read_summary, status_of

__all__ = [
    "LATEST",
    "RunInUse",
    "RunLock",
    "RunSummary",
    "experiment_runs",
    "find_run",
    "new_evaluation_folder",
    "new_run_folder",
    "point_latest_to",
    "read_summary",
    "status_of",
]
