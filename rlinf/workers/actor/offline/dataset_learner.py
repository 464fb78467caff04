"""What learners from datasets share: the data, and which samples of them a batch has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.data.demonstrations.load import Demonstrations
from rlinf.data.demonstrations.sampling import MixtureOrder, SampleOrder, sample_noise
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.initial_weights import initial_weights
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.imitation.fitting_data import demonstrations_for, share_out_of_range
from rlinf.workers.actor.learner import Learner, LearnerPlace

_MOST_OUT_OF_RANGE = 0.01
"""Share of actions beyond the bounds above which data are told to look odd."""


class DatasetLearner(Learner):
    """Learns from datasets alone.

    Each rank has all of the data and takes its share of each batch, whose samples, and noise that
    belongs to them, do not depend on the number of ranks.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Attributes:
        demos: the data, on the host.
        held_out: frames of episodes that are not learned from, int64 `[n]`.
        batch_size: samples of a batch, over all ranks.
        steps: batches of an update.

    Raises:
        ValueError: the policy cannot be trained on given actions, or the data do not fit it.
    """

    offline = True

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, place)
        self.demos = demos = demonstrations_for(model, cfg.data)
        out = share_out_of_range(model, demos.actions)
        if out > _MOST_OUT_OF_RANGE:
            self.tell(
                f"{out:.0%} of the actions of the data are outside of the env's range; are they in "
                "its units?"
            )
        seed = named_seed(place.seed, "actor", "demonstrations")
        held_out = held_out_episodes(demos.num_episodes, cfg.data.get("held_out_ratio", 0.0), seed)
        self.held_out, self._learned = demos.frames(held_out), demos.frames(~held_out)
        self._episodes = int((~held_out).sum())
        if initial_weights(cfg) is None:
            model.update_normalizer({key: obs[self._learned] for key, obs in demos.obs.items()})
        self.batch_size = cfg.actor.global_batch_size or len(self._learned)
        self.steps = cfg.runner.local_update_steps
        weights = cfg.data.train_data_weights
        self._order = SampleOrder(len(self._learned), seed)
        if weights is not None:
            self._order = MixtureOrder(self._of_folders(demos), list(weights), seed)
        self._noise_seed = named_seed(place.seed, "actor", "sft_noise")
        self._position = 0

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

    def prepare(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> dict[str, float]:
        """Refuse rollouts: the data are all that is learned from."""
        raise RuntimeError(
            f"algorithm.loss_type {self.cfg.algorithm.loss_type} learns from "
            "data.train_data_paths and takes no rollouts: set runner.task_type to offline or sft"
        )

    def next_rows(self) -> Tensor:
        """Return this rank's share of the samples of the next batches, `[steps, share]`."""
        count = self.steps * self.batch_size
        rows = self._learned[self._order.rows(self._position, count)]
        self._position += count
        return self._own_share(rows)

    def next_noise(self, width: int) -> Tensor:
        """Return noise of the samples that `next_rows` will return, `[steps, share, width]`.

        Args:
            width: numbers per sample.
        """
        count = self.steps * self.batch_size
        return self._own_share(sample_noise(self._noise_seed, self._position, count, width))

    def _own_share(self, samples: Tensor) -> Tensor:
        """Return this rank's part, `[steps, share, ...]`, of what belongs to the next samples."""
        share = self.batch_size // self.place.world_size
        own = slice(self.place.rank * share, (self.place.rank + 1) * share)
        return samples.unflatten(0, (self.steps, self.batch_size))[:, own]

    def data_metrics(self) -> dict[str, float]:
        """Say how much there is to learn from, and how often it was seen."""
        return {
            "data/epochs": self._position / len(self._learned),
            "data/episodes": float(self._episodes),
            "data/samples": float(len(self._learned)),
        }

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {"position": self._position, "samples": len(self._learned)}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self._position = state["position"]
        if state["samples"] != len(self._learned):
            self.tell(
                f"the data have {len(self._learned)} samples, and had {state['samples']} when the "
                "checkpoint was made: their order is another one"
            )


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
