"""What learners from datasets share: the data, and which samples of them a batch has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rlinf.data.demonstrations.sampling import SampleOrder
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.initial_weights import initial_weights
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.imitation.fitting_data import demonstrations_for, share_out_of_range
from rlinf.workers.actor.learner import Learner, LearnerPlace

_MOST_OUT_OF_RANGE = 0.01
"""Share of actions beyond the bounds above which data are told to look odd."""


class DatasetLearner(Learner):
    """Learns from datasets alone.

    Each rank has all of the data and takes its share of each batch, whose samples do not depend on
    the number of ranks.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Attributes:
        demos: the data, on the host.
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
        if initial_weights(cfg) is None:
            model.update_normalizer(demos.obs)
        self.batch_size = cfg.actor.global_batch_size or len(demos)
        self.steps = cfg.runner.local_update_steps
        self._order = SampleOrder(len(demos), named_seed(place.seed, "actor", "demonstrations"))
        self._position = 0
        self._outcomes = demos.outcomes()

    def prepare(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> dict[str, float]:
        """Refuse rollouts: the data are all that is learned from."""
        raise RuntimeError(
            f"algorithm.loss_type {self.cfg.algorithm.loss_type} learns from "
            "data.train_data_paths and takes no rollouts: set runner.task_type to offline"
        )

    def next_rows(self) -> Tensor:
        """Return this rank's share of the samples of the next batches, `[steps, share]`."""
        count, ranks, rank = self.steps * self.batch_size, self.place.world_size, self.place.rank
        rows = self._order.rows(self._position, count)
        self._position += count
        share = self.batch_size // ranks
        return rows.view(self.steps, self.batch_size)[:, rank * share : (rank + 1) * share]

    def data_metrics(self) -> dict[str, float]:
        """Say how much there is to learn from, and how often it was seen."""
        return {
            "data/epochs": self._position / len(self.demos),
            "data/episodes": float(self.demos.num_episodes),
            "data/samples": float(len(self.demos)),
            **{f"data/{name}": value for name, value in self._outcomes.items()},
        }

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {"position": self._position, "samples": len(self.demos)}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self._position = state["position"]
        if state["samples"] != len(self.demos):
            self.tell(
                f"the data have {len(self.demos)} samples, and had {state['samples']} when the "
                "checkpoint was made: their order is another one"
            )
