"""Numbers of scored groups: of the responses of a step, and of a validation."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence

from rlinf.algorithms.dynamic_sampling import carries_signal
from rlinf.data.reasoning import Verdict
from rlinf.utils.intervals import mean_interval, wilson
from rlinf.utils.numbers import percent

_RIGHT = 0.5
"""Scores above it are right answers."""
_TASK = re.compile(r"eval/(.+)/pass@1$")
_SHOWN_TASKS = 5


def of_verdicts(verdicts: Sequence[Verdict], seconds: float) -> dict[str, float]:
    """Return the metrics of the responses of a step, under `rollout/`: score, per task, lengths.

    What is learned from, the scores less penalties, is the learner's to tell: `rollout/rewards`.

    Args:
        verdicts: those of all groups that were generated for it.
        seconds: how long the step took, in which others may have been generated ahead.
    """
    scores = [score for verdict in verdicts for score in verdict.scores]
    lengths = [length for verdict in verdicts for length in verdict.lengths]
    out = {}
    if scores:
        out = {
            "score": statistics.fmean(scores),
            "response_length": statistics.fmean(lengths),
            "response_length_max": float(max(lengths)),
            "truncated": sum(verdict.truncated for verdict in verdicts) / len(scores),
        }
    out |= {
        "groups_without_signal": statistics.fmean(
            float(not carries_signal(verdict.scores, verdict.turn_rewards)) for verdict in verdicts
        ),
        "samples": float(len(scores)),
        "tokens": float(sum(lengths)),
        "tokens_per_second": sum(lengths) / max(seconds, 1e-9),
    }
    tasks = _tasks(verdicts)
    for task in tasks if len(tasks) > 1 else ():
        of_task = [s for verdict in verdicts if verdict.task == task for s in verdict.scores]
        if of_task:
            out[f"{task}/score"] = statistics.fmean(of_task)
    out |= of_episodes(verdicts)
    return {f"rollout/{name}": value for name, value in out.items()} | of_rewards(verdicts)


def of_episodes(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the means of what episodes of several turns are counted by: turns, tool calls, ..."""
    numbers: dict[str, list[float]] = {}
    for verdict in verdicts:
        for name, values in verdict.of_episodes.items():
            numbers.setdefault(name, []).extend(values)
    return {name: statistics.fmean(values) for name, values in sorted(numbers.items())}


def of_rewards(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return what rewards say beside scores, as means, and what they could not score: `reward/`."""
    numbers: dict[str, list[float]] = {}
    failures: dict[str, int] = {}
    for verdict in verdicts:
        for name, values in verdict.numbers.items():
            numbers.setdefault(name, []).extend(values)
        for name, count in verdict.failures.items():
            failures[name] = failures.get(name, 0) + count
    out = {name: statistics.fmean(values) for name, values in numbers.items()}
    out |= {f"failures/{name}": float(count) for name, count in failures.items()}
    return {f"reward/{name}": value for name, value in sorted(out.items())}


def of_validation(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Metrics of a validation, under `eval/`: pass@1 with its interval, pass@k, per task.

    Args:
        verdicts: one per prompt, all with as many responses.
    """
    size = len(verdicts[0].scores)
    right = [sum(score > _RIGHT for score in verdict.scores) for verdict in verdicts]
    shares = [count / size for count in right]
    rate = statistics.fmean(shares)
    interval = wilson(rate, len(shares)) if size == 1 else mean_interval(shares)
    out = {
        "pass@1": rate,
        "pass@1_low": max(0.0, interval.low),
        "pass@1_high": min(1.0, interval.high),
        "prompts": float(len(verdicts)),
        "samples": float(len(verdicts) * size),
        "score": statistics.fmean(score for verdict in verdicts for score in verdict.scores),
        "response_length": statistics.fmean(n for verdict in verdicts for n in verdict.lengths),
    }
    if size > 1:
        out[f"pass@{size}"] = statistics.fmean(pass_at_k(size, count, size) for count in right)
    tasks = _tasks(verdicts)
    if len(tasks) > 1:
        for task in tasks:
            out[f"{task}/pass@1"] = statistics.fmean(
                share
                for share, verdict in zip(shares, verdicts, strict=True)
                if verdict.task == task
            )
    out |= of_episodes(verdicts) | of_rewards(verdicts)
    return {f"eval/{name}": value for name, value in out.items()}


def sentence(metrics: Mapping[str, float]) -> str:
    """Say what a validation found.

    Args:
        metrics: of `of_validation`.
    """
    low, high = metrics["eval/pass@1_low"], metrics["eval/pass@1_high"]
    return (
        f"evaluated pass@1 {percent(metrics['eval/pass@1'])} over {int(metrics['eval/prompts'])} "
        f"prompts (95 % interval: {percent(low)} to {percent(high)}){_by_task(metrics)}"
    )


def _by_task(metrics: Mapping[str, float]) -> str:
    """Say how often each task was solved, the least first; of many, only of some."""
    found = [(value, match[1]) for key, value in metrics.items() if (match := _TASK.match(key))]
    if not found:
        return ""
    shown = [f"{task} {percent(rate)}" for rate, task in sorted(found)[:_SHOWN_TASKS]]
    some = f"of {len(found)} tasks the hardest: " if len(found) > len(shown) else ""
    return f"; {some}{', '.join(shown)}"


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Chance that at least one of k responses is right, estimated without bias.

        1 - C(n - c, k) / C(n, k)        (Chen et al. 2021)

    Args:
        samples: n responses.
        right: c of them are right.
        k: at most n.
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def _tasks(verdicts: Sequence[Verdict]) -> list[str]:
    return sorted({verdict.task for verdict in verdicts})
