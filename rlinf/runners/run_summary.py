"""The summary of a run from its first moment to its last: before there are workers, and after."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rlinf.runners.run_folder import given_overrides, recipe_name, run_folder, versions
from rlinf.utils.phases import phases
from rlinf.utils.runs import RunSummary
from rlinf.utils.runs.summary import add_to_summary


def begin_summary(cfg: Any) -> RunSummary:
    """Write what is known of a run that has been begun; the summary of an earlier one is gone."""
    return RunSummary(
        run_folder(cfg),
        phases.began,
        recipe=recipe_name(cfg),
        overrides=given_overrides(),
        seed=cfg.runner.seed,
        versions=versions(),
    )


def end_summary(folder: Path) -> None:
    """Add what took until the end: workers and Ray have been stopped."""
    assert phases.began is not None
    seconds = round(time.time() - phases.began, 3)
    add_to_summary(folder, phases=phases.seconds, wall_seconds=seconds)
