"""What takes the place of a learner where a policy that learned from data is only evaluated."""

from __future__ import annotations

from typing import Any

from torch import nn

from rlinf.workers.actor.learner import ACTOR, Learner, LearnerPlace
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape


class HeldPolicy(Learner):
    """Holds the weights of a policy, and needs none of the data that it learned from.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32; or built
            without weights.
        place: where it runs.
    """

    defers_weights = True

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, place)
        engine = self.policy_engine(model)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, place.seed, UpdateShape()))

    def prepare(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Refuse rollouts."""
        raise RuntimeError("this run only evaluates: runner.only_eval is true")

    def update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Refuse updates."""
        raise RuntimeError("this run only evaluates: runner.only_eval is true")
