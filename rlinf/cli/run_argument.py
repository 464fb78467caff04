"""The argument of commands that look at a run."""

from __future__ import annotations

ABOUT = "folder of a run, or of an experiment, whose newest run is meant"


def run_argument(text: str) -> str:
    """Return the folder of a run for what a user has typed; for `type` of an argument."""
    from rlinf.utils.runs import find_run

    return str(find_run(text))
