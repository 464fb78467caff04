"""Start samplers that go by how often tasks fail: the hard ones, or those that teach most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from rlinf.config.schema.base import Float, Section
from rlinf.envs.options import option
from rlinf.envs.start_samplers import register_start_sampler
from rlinf.envs.start_samplers.base import EpisodeOutcome, StartSampler


class FailureRateKeys(Section):
    """Keys of the start samplers by failure rate."""

    floor: Float = Field(
        0.2,
        ge=0,
        le=1,
        description="Least weight of a task, beside 1 of those that are played most.",
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

    name: ClassVar[str] = "failure_rate"
    unseen: ClassVar[float] = 1.0
    """Failure rate of a task that has not been seen."""

    def __init__(self, cfg: Any, tasks: Sequence[str]) -> None:
        super().__init__(cfg, tasks)
        self._floor = float(option(cfg, "floor", 0.2))
        self._memory = float(option(cfg, "memory", 0.8))
        self._rates = [self.unseen] * len(self.tasks)

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
                    f"env.train.start_sampler.type is {self.name}, but the env does not tell "
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


class LearnabilitySampler(FailureRateSampler):
    """Weighs task `i` by the variance of its success, for algorithms that compare episodes.

    A group of episodes that all succeed, or all fail, has no advantages. With the failure rates of
    `FailureRateSampler`, which are 1/2 at first, the weight is
    `floor + (1 - floor) * 4 * f_i * (1 - f_i)`: 1 for a task that succeeds half of the time.
    """

    name = "learnability"
    unseen = 0.5

    def weights(self) -> list[float]:
        """See the base class."""
        return [self._floor + (1 - self._floor) * 4 * rate * (1 - rate) for rate in self._rates]


register_start_sampler(FailureRateSampler.name, FailureRateSampler, schema=FailureRateKeys)
register_start_sampler(LearnabilitySampler.name, LearnabilitySampler, schema=FailureRateKeys)
