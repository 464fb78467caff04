"""How numbers of runs are put into words."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rlinf.cli.runs.score import RATES, Score
from rlinf.utils.run_state import span

if TYPE_CHECKING:
    from rlinf.cli.runs.entry import Speed

NAMES = {"success_once": "success"}


def metric_name(metric: str) -> str:
    """Return how a metric is called."""
    return NAMES.get(metric, metric)


def metric_value(metric: str, value: float) -> str:
    """Return a value of a metric: `97.5 %`, `-1,406.0`."""
    return f"{100 * value:.1f} %" if metric in RATES else f"{value:,.1f}"


def score_words(score: Score | None) -> str:
    """Return a score in short: `success 97.5 %`; of one on the way also its step."""
    if score is None:
        return ""
    on_the_way = "" if score.step is None else f" @{score.step}"
    return f"{metric_name(score.metric)} {metric_value(score.metric, score.value)}{on_the_way}"


def score_with_interval(score: Score) -> str:
    """Return a score with all that is known of how sure it is."""
    notes = []
    if score.low is not None and score.high is not None:
        low, high = (metric_value(score.metric, end) for end in (score.low, score.high))
        notes.append(f"95 % interval {low} to {high}")
    if score.trials is not None:
        notes.append(f"n = {score.trials}")
    if score.step is not None:
        notes.append(f"at step {score.step}")
    value = metric_value(score.metric, score.value)
    return f"{value} ({', '.join(notes)})" if notes else value


def speed_words(speed: Speed | None) -> str:
    """Return a speed: `991 env steps/s`."""
    return "" if speed is None else f"{per_second(speed.value)} {speed.unit}/s"


def per_second(value: float) -> str:
    """Return a number with as many digits as tell something."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def when_words(began: float) -> str:
    """Return a time: `2026-11-17 00:46`."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(began))


def span_words(seconds: float | None) -> str:
    """Return a length of time, empty if it is not known."""
    return "" if seconds is None else span(seconds)


def count_words(count: int | None) -> str:
    """Return a count, empty if it is not known."""
    return "" if count is None else f"{count:,}"


def config_value(value: Any) -> str:
    """Return a value of a configuration, as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def size_words(count: int) -> str:
    """Return bytes in a unit that gives a short number: `2.1 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
