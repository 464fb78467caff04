"""What a run knows of its tasks: how their episodes end, and how often each is played."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rlinf.envs.start_samplers import make_start_sampler
from rlinf.envs.start_samplers.base import EpisodeOutcome, StartSampler


class TaskStarts:
    """Shows the episodes of a rollout to the start sampler, and its weights to the envs.

    With a single task there is nothing to choose, and nothing is said.

    Args:
        cfg: checked configuration.

    Attributes:
        weights: how often tasks are to be played in the next rollout; None where that never
            changes.
    """

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        self._tasks: Sequence[str] = ()
        self._sampler: StartSampler | None = None
        self.weights: list[float] | None = None

    def begin(self, tasks: Sequence[str]) -> None:
        """Make the sampler, now that the tasks are known."""
        self._tasks = tasks
        if len(tasks) > 1:
            sampler = make_start_sampler(self._cfg.env.train.start_sampler, tasks)
            self._sampler = sampler if sampler.adapts else None
        self._renew()

    def note(self, results: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Take in a rollout; return metrics by task, under `env/`.

        Args:
            results: what the env workers returned.
        """
        if len(self._tasks) < 2:
            return {}
        outcomes = [outcome for result in results for outcome in result["outcomes"]]
        metrics = outcome_metrics(self._tasks, outcomes)
        if self._sampler is not None:
            self._sampler.observe(outcomes)
            self._renew()
            for name, weight in zip(self._tasks, self.weights, strict=True):
                metrics[f"env/task_share/{name}"] = weight / sum(self.weights)
        return metrics

    def _renew(self) -> None:
        if self._sampler is None:
            self.weights = None
            return
        weights = list(self._sampler.weights())
        # If nothing speaks for any task, all are played alike.
        self.weights = weights if any(weights) else [1.0] * len(weights)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        if self._sampler is None:
            return {}
        return {"tasks": list(self._tasks), "sampler": self._sampler.get_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from such a state; a sampler of other tasks, or none, begins anew."""
        if self._sampler is not None and state.get("tasks") == list(self._tasks):
            self._sampler.set_state(state["sampler"])
            self._renew()


def outcome_metrics(tasks: Sequence[str], outcomes: Sequence[EpisodeOutcome]) -> dict[str, float]:
    """Return success and return by task, for tasks of which episodes ended, under `env/`.

    Args:
        tasks: names.
        outcomes: of the episodes.
    """
    metrics: dict[str, float] = {}
    for number, name in enumerate(tasks):
        own = [outcome for outcome in outcomes if outcome.task == number]
        metrics[f"env/episodes/{name}"] = float(len(own))
        if not own:
            continue
        if own[0].success is not None:
            solved = statistics.fmean(float(outcome.success) for outcome in own)
            metrics[f"env/success_once/{name}"] = solved
        metrics[f"env/return/{name}"] = statistics.fmean(outcome.ret for outcome in own)
    return metrics
