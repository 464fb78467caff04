"""How good a run is: the metrics of its evaluation that one compares, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf.utils.intervals import wilson

METRICS = {
    "success_once": "eval/episodes",
    "pass@1": "eval/prompts",
    "return": "eval/episodes",
    "total_tokens": "eval/prompts",
}
"""What is compared, the main one first, and where the number of trials is. The tokens of all agents
of an episode are what its score costs."""
RATES = ("success_once", "pass@1")


@dataclass(frozen=True)
class Score:
    """What an evaluation found.

    Attributes:
        metric: one of `METRICS`.
        value: mean over all trials.
        low: lower end of the 95 % interval; None if it is not known.
        high: upper end.
        trials: episodes or prompts; None if it is not known.
        step: global step of an evaluation on the way; None for the final one.
    """

    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    trials: int | None = None
    step: int | None = None


def number(value: Any) -> float | None:
    """Return a value that is a finite number, None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def scores_of(evaluation: Any, step: int | None = None) -> list[Score]:
    """Return what an evaluation found, the main metric first.

    Args:
        evaluation: metrics under `eval/`; anything else has no scores.
        step: global step, if it is not the final one.
    """
    if not isinstance(evaluation, Mapping):
        return []
    out = []
    for metric, trials_key in METRICS.items():
        value, trials = number(evaluation.get(f"eval/{metric}")), number(evaluation.get(trials_key))
        if value is None:
            continue
        count = None if trials is None else int(trials)
        # The run knows which of its episodes began alike, and so say nothing new.
        low, high = (number(evaluation.get(f"eval/{metric}_{end}")) for end in ("low", "high"))
        if (low is None or high is None) and metric in RATES and count:
            _, low, high = wilson(value, count)
        out.append(Score(metric, value, low, high, count, step))
    return out
