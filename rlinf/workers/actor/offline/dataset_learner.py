"""What learners from datasets share: which samples of the data a batch has."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlinf.data.demonstrations.sampling import SampleOrder, sample_noise
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.learner import Learner, LearnerPlace


class DatasetLearner(Learner):
    """Learns from datasets alone.

    Each rank has all of the data and takes its share of each batch, whose samples, and noise that
    belongs to them, do not depend on the number of ranks.

    Args:
        cfg: the configuration.
        place: where it runs.
        samples: number of samples of the data.
        episodes: that these are of.

    Attributes:
        batch_size: samples of a batch, over all ranks.
        steps: batches of an update.
    """

    offline = True

    def __init__(self, cfg: Any, place: LearnerPlace, samples: int, episodes: int) -> None:
        super().__init__(cfg, place)
        self.batch_size = cfg.actor.global_batch_size or samples
        self.steps = cfg.runner.local_update_steps
        self._num_samples, self._num_episodes = samples, episodes
        self._order = SampleOrder(samples, named_seed(place.seed, "actor", "demonstrations"))
        self._noise_seed = named_seed(place.seed, "actor", "sft_noise")
        self._position = 0

    def prepare(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Refuse rollouts: the data are all that is learned from."""
        raise RuntimeError(
            f"algorithm.loss_type {self.cfg.algorithm.loss_type} learns from "
            "data.train_data_paths and takes no rollouts: set runner.task_type to offline or sft"
        )

    def next_rows(self) -> Tensor:
        """Return this rank's share of the samples of the next batches, `[steps, share]`."""
        count = self.steps * self.batch_size
        rows = self._order.rows(self._position, count)
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
            "data/epochs": self._position / self._num_samples,
            "data/episodes": float(self._num_episodes),
            "data/samples": float(self._num_samples),
        }

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {"position": self._position, "samples": self._num_samples}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self._position = state["position"]
        if state["samples"] != self._num_samples:
            self.tell(
                f"the data have {self._num_samples} samples, and had {state['samples']} when the "
                "checkpoint was made: their order is another one"
            )
