"""What policies that learn from datasets share: the episodes, and that they fit the policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlinf.data.demonstrations.load import Demonstrations
from rlinf.data.demonstrations.sampling import MixtureOrder
from rlinf.hybrid_engines.initial_weights import initial_weights
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.imitation.fitting_data import demonstrations_for, share_out_of_range
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.offline.dataset_learner import DatasetLearner

_MOST_OUT_OF_RANGE = 0.01
"""Share of actions beyond the bounds above which data are told to look odd."""


class DemonstrationLearner(DatasetLearner):
    """Trains a policy on what was observed and done in datasets.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32; or built
            without weights.
        place: where it runs.

    Attributes:
        demos: the data, on the host.
        held_out: frames of episodes that are not learned from, int64 `[n]`.

    Raises:
        ValueError: the policy cannot be trained on given actions, or the data do not fit it.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        self.demos = demos = demonstrations_for(model, cfg.data)
        seed = named_seed(place.seed, "actor", "demonstrations")
        held_out = held_out_episodes(demos.num_episodes, cfg.data.get("held_out_ratio", 0.0), seed)
        self.held_out, self._learned = demos.frames(held_out), demos.frames(~held_out)
        super().__init__(cfg, place, len(self._learned), int((~held_out).sum()))
        if cfg.data.train_data_weights is not None:
            weights = list(cfg.data.train_data_weights)
            self._order = MixtureOrder(self._of_folders(demos), weights, seed)
        out = share_out_of_range(model, demos.actions)
        if out > _MOST_OUT_OF_RANGE:
            self.tell(
                f"{out:.0%} of the actions of the data are outside of the env's range; are they in "
                "its units?"
            )
        if initial_weights(cfg) is None:
            model.update_normalizer({key: obs[self._learned] for key, obs in demos.obs.items()})

    def _of_folders(self, demos: Demonstrations) -> list[Tensor]:
        """Return which of the frames that are learned from are of which folder, numbers of them."""
        source = demos.sources.repeat_interleave(demos.begins.diff())[self._learned]
        sets = []
        for number, path in enumerate(self.cfg.data.train_data_paths):
            sets.append((source == number).nonzero().squeeze(1))
            if not len(sets[-1]):
                raise ValueError(
                    f"data.train_data_weights weighs {path}, of which no episode is learned from: "
                    "leave it out, or change data.max_episodes"
                )
        return sets

    def next_rows(self) -> Tensor:
        """See `DatasetLearner.next_rows`: frames of the episodes that are learned from."""
        return self._learned[super().next_rows()]

    def data_metrics(self) -> dict[str, float]:
        """Say also what the episodes came to."""
        outcomes = {f"data/{name}": value for name, value in self.demos.outcomes().items()}
        return super().data_metrics() | outcomes


def held_out_episodes(count: int, ratio: float, seed: int) -> Tensor:
    """Draw the episodes that are not learned from.

    Args:
        count: E, number of episodes.
        ratio: share of them; above 0, it is at least one.
        seed: of the draw.

    Returns:
        bool `[E]`.

    Raises:
        ValueError: none would be left to learn from.
    """
    held_out = torch.zeros(count, dtype=torch.bool)
    number = max(1, round(ratio * count)) if ratio else 0
    if number >= count:
        raise ValueError(
            f"data.held_out_ratio {ratio} would leave none of {count} episode(s) to learn from: "
            "make it smaller, or collect more"
        )
    own = torch.Generator().manual_seed(named_seed(seed, "held_out"))
    held_out[torch.randperm(count, generator=own)[:number]] = True
    return held_out
