"""Behaviour cloning: a policy learns to do what was done in datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rlinf.data.demonstrations.sampling import ChunkSamples, SampleOrder
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.initial_weights import initial_weights
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.imitation.cloning_task import CloningTask
from rlinf.workers.actor.imitation.config import BehaviourCloningKeys
from rlinf.workers.actor.imitation.fitting_data import demonstrations_for, share_out_of_range
from rlinf.workers.actor.learner import ACTOR, Learner, LearnerPlace
from rlinf.workers.actor.registry import register_learner
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape

_MOST_OUT_OF_RANGE = 0.01
"""Share of actions beyond the bounds above which data are told to look odd."""


@register_learner("embodied_bc", schema=BehaviourCloningKeys)
class BehaviourCloningLearner(Learner):
    """Learns from datasets alone.

    Each rank has all of the data and takes its share of each batch, whose samples do not depend on
    the number of ranks.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Raises:
        ValueError: the policy cannot be trained on given actions, or the data do not fit it.
    """

    offline = True

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, place)
        self._demos = demos = demonstrations_for(model, cfg.data)
        out = share_out_of_range(model, demos.actions)
        if out > _MOST_OUT_OF_RANGE:
            self.tell(
                f"{out:.0%} of the actions of the data are outside of the env's range; are they in "
                "its units?"
            )
        if initial_weights(cfg) is None:
            model.update_normalizer(demos.obs)
        if cfg.actor.fsdp_config.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        engine = TrainEngine(
            model,
            cfg.actor,
            place.device,
            place.world_size,
            place.total_steps,
            on_nan=cfg.runner.on_nan,
        )
        self._batch = cfg.actor.global_batch_size or len(demos)
        shape = UpdateShape(global_batch=self._batch, shuffles=False)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, place.seed, shape))
        self._samples = ChunkSamples(demos.to(engine.device), cfg.actor.model.num_action_chunks)
        self._order = SampleOrder(len(demos), named_seed(place.seed, "actor", "demonstrations"))
        self._position = 0
        self._steps = cfg.runner.local_update_steps
        self._loss, self._micro_batch = cfg.algorithm.bc_loss, cfg.actor.micro_batch_size

    def prepare(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> dict[str, float]:
        """Refuse rollouts: there is nothing to learn from them without labels."""
        raise RuntimeError(
            "behaviour cloning learns from data.train_data_paths and takes no rollouts: set "
            "runner.task_type to offline"
        )

    def update(self) -> dict[str, float]:
        """Make `runner.local_update_steps` optimiser steps; return metrics over all ranks."""
        self.engine.onload()
        rows = self._rows()
        if self.fingerprints is not None:
            self.fingerprints.batch({"rows": rows.view(self._steps, -1)})
        task = CloningTask(self.engine, self._samples, rows, self._loss, self._micro_batch)
        metrics = self.updates.run(task)
        self.tell_what_was_left_out(metrics, "no sample of the data counts")
        self.version += 1
        demos = self._demos
        metrics["data/epochs"] = self._position / len(demos)
        metrics["data/episodes"] = float(demos.num_episodes)
        metrics["data/samples"] = float(len(demos))
        metrics["nan_skipped"] = float(self.engine.skipped)
        return metrics

    def _rows(self) -> Tensor:
        """Return this rank's share of the next batches, one after the other."""
        count, ranks, rank = self._steps * self._batch, self.place.world_size, self.place.rank
        rows = self._order.rows(self._position, count)
        self._position += count
        share = self._batch // ranks
        return rows.view(self._steps, self._batch)[:, rank * share : (rank + 1) * share].flatten()

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {"position": self._position, "samples": len(self._demos)}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self._position = state["position"]
        if state["samples"] != len(self._demos):
            self.tell(
                f"the data have {len(self._demos)} samples, and had {state['samples']} when the "
                "checkpoint was made: their order is another one"
            )
