"""The start sampler that plays tasks more often the more often they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from rlinf.config.schema.base import Float, Section
from rlinf.envs.options import option
from rlinf.envs.start_samplers import register_start_sampler
from rlinf.envs.start_samplers.base import EpisodeOutcome, StartSampler


class FailureRateKeys(Section):
    """Keys of the start sampler by failure rate."""

    floor: Float = Field(
        0.2,
        ge=0,
        le=1,
        description="Weight of a task that never fails, beside 1 of one that always does.",
    )
    memory: Float = Field(
        0.8,
        ge=0,
        lt=1,
        description="How much of the old failure rate stays when a rollout has shown a new one.",
    )


class FailureRateSampler(StartSampler):
    """Weighs task `i` by its failure rate.

    Before a task has been seen its failure rate `f_i` is 1. A rollout in which `n_i > 0` of its
    episodes ended and `s_i` of them were solved makes it

        f_i = memory * f_i + (1 - memory) * (1 - s_i / n_i)

    and its weight is `floor + (1 - floor) * f_i`.
    """

    def __init__(self, cfg: Any, tasks: Sequence[str]) -> None:
        super().__init__(cfg, tasks)
        self._floor = float(option(cfg, "floor", 0.2))
        self._memory = float(option(cfg, "memory", 0.8))
        self._rates = [1.0] * len(self.tasks)

    def weights(self) -> list[float]:
        """See the base class."""
        return [self._floor + (1 - self._floor) * rate for rate in self._rates]

    def observe(self, outcomes: Sequence[EpisodeOutcome]) -> None:
        """See the base class.

        Raises:
            ValueError: The env does not tell whether tasks are solved.
        """
        ended, solved = [0] * len(self.tasks), [0] * len(self.tasks)
        for outcome in outcomes:
            if outcome.success is None:
                raise ValueError(
                    "env.train.start_sampler.type is failure_rate, but the env does not tell "
                    "whether a task is solved: use uniform or weighted"
                )
            ended[outcome.task] += 1
            solved[outcome.task] += outcome.success
        for task, count in enumerate(ended):
            if count:
                failed = 1 - solved[task] / count
                self._rates[task] = self._memory * self._rates[task] + (1 - self._memory) * failed

    def get_state(self) -> dict[str, Any]:
        """See the base class."""
        return {"rates": list(self._rates)}

    def set_state(self, state: dict[str, Any]) -> None:
        """See the base class."""
        self._rates = [float(rate) for rate in state["rates"]]


register_start_sampler("failure_rate", FailureRateSampler, schema=FailureRateKeys)
