"""What policies that learn from datasets share: the episodes, and that they fit the policy."""

from __future__ import annotations

from typing import Any

from torch import nn

from rlinf.hybrid_engines.initial_weights import initial_weights
from rlinf.workers.actor.imitation.fitting_data import demonstrations_for, share_out_of_range
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.offline.dataset_learner import DatasetLearner

_MOST_OUT_OF_RANGE = 0.01
"""Share of actions beyond the bounds above which data are told to look odd."""


class DemonstrationLearner(DatasetLearner):
    """Trains a policy on what was observed and done in datasets.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Attributes:
        demos: the data, on the host.

    Raises:
        ValueError: the policy cannot be trained on given actions, or the data do not fit it.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        self.demos = demos = demonstrations_for(model, cfg.data)
        super().__init__(cfg, place, len(demos), demos.num_episodes)
        out = share_out_of_range(model, demos.actions)
        if out > _MOST_OUT_OF_RANGE:
            self.tell(
                f"{out:.0%} of the actions of the data are outside of the env's range; are they in "
                "its units?"
            )
        if initial_weights(cfg) is None:
            model.update_normalizer(demos.obs)

    def data_metrics(self) -> dict[str, float]:
        """Say also what the episodes came to."""
        outcomes = {f"data/{name}": value for name, value in self.demos.outcomes().items()}
        return super().data_metrics() | outcomes
