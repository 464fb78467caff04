"""Behaviour cloning: a policy learns to do what was done in datasets."""

from __future__ import annotations

from typing import Any

from torch import nn

from rlinf.data.demonstrations.sampling import ChunkSamples
from rlinf.workers.actor.imitation.cloning_task import CloningTask
from rlinf.workers.actor.imitation.config import BehaviourCloningKeys
from rlinf.workers.actor.learner import ACTOR, LearnerPlace
from rlinf.workers.actor.offline.demonstration_learner import DemonstrationLearner
from rlinf.workers.actor.registry import register_learner
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape


@register_learner("embodied_bc", schema=BehaviourCloningKeys)
class BehaviourCloningLearner(DemonstrationLearner):
    """Learns what was done.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Raises:
        ValueError: the policy cannot be trained on given actions, or the data do not fit it.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, model, place)
        engine = self.policy_engine(model)
        shape = UpdateShape(global_batch=self.batch_size, shuffles=False)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, place.seed, shape))
        demos = self.demos.to(engine.device)
        self._samples = ChunkSamples(demos, cfg.actor.model.num_action_chunks)
        self._loss, self._micro_batch = cfg.algorithm.bc_loss, cfg.actor.micro_batch_size

    def update(self) -> dict[str, float]:
        """Make `runner.local_update_steps` optimiser steps; return metrics over all ranks."""
        self.engine.onload()
        rows = self.next_rows()
        if self.fingerprints is not None:
            self.fingerprints.batch({"rows": rows})
        task = CloningTask(
            self.engine, self._samples, rows.flatten(), self._loss, self._micro_batch
        )
        metrics = self.updates.run(task)
        self.tell_what_was_left_out(metrics, "no sample of the data counts")
        self.version += 1
        metrics["nan_skipped"] = float(self.engine.skipped)
        return metrics | self.data_metrics()
