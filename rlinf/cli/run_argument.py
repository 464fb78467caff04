"""The argument of commands that look at a run."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError

ABOUT = "folder of a run, or of an experiment, whose newest run is meant"


def run_argument(text: str) -> str:
    """Return the folder of a run for what a user has typed; for `type` of an argument.

    Raises:
        ArgumentTypeError: there is no such folder; names runs nearby.
    """
    from rlinf.cli.runs.find import not_a_run
    from rlinf.utils.runs import find_run

    if not os.path.isdir(text):
        raise ArgumentTypeError(not_a_run(text))
    return str(find_run(text))
