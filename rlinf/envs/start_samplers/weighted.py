"""Start samplers whose weights stay: alike for all tasks, or as the config says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rlinf.config.schema.base import Float, Section
from rlinf.config.suggest import did_you_mean
from rlinf.envs.options import map_option
from rlinf.envs.start_samplers import register_start_sampler
from rlinf.envs.start_samplers.base import StartSampler


def _at_least_0(weights: dict[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        if weight < 0:
            raise ValueError(f"the weight of {name} is {weight}; it must be at least 0")
    return weights


class WeightedKeys(Section):
    """Keys of the weighted start sampler."""

    weights: Annotated[dict[str, Float], AfterValidator(_at_least_0)] = Field(
        default_factory=dict,
        description="Share of episodes by task, relative to the others; 1 for a task that is not "
        "named.",
    )


class UniformSampler(StartSampler):
    """Plays all tasks equally often."""

    adapts = False

    def weights(self) -> list[float]:
        """See the base class."""
        return [1.0] * len(self.tasks)


class WeightedSampler(StartSampler):
    """Plays tasks as often as the config says."""

    adapts = False

    def __init__(self, cfg: Any, tasks: Sequence[str]) -> None:
        super().__init__(cfg, tasks)
        self._given = map_option(cfg, "weights")
        for name in self._given:
            if name not in self.tasks:
                raise ValueError(
                    f"start_sampler.weights names the task '{name}', which is none of this run's; "
                    f"{did_you_mean(name, self.tasks)} tasks: {', '.join(self.tasks)}"
                )

    def weights(self) -> list[float]:
        """See the base class."""
        return [float(self._given.get(name, 1.0)) for name in self.tasks]


register_start_sampler("uniform", UniformSampler)
register_start_sampler("weighted", WeightedSampler, schema=WeightedKeys)
