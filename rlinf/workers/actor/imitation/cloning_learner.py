"""Behaviour cloning: a policy learns to do what was done in datasets."""

from __future__ import annotations

from typing import Any

from torch import nn

from rlinf.data.demonstrations.sampling import ChunkSamples, sample_noise
from rlinf.workers.actor.imitation.cloning_task import CloningTask
from rlinf.workers.actor.imitation.config import BehaviourCloningKeys
from rlinf.workers.actor.learner import ACTOR, LearnerPlace
from rlinf.workers.actor.offline.demonstration_learner import DemonstrationLearner
from rlinf.workers.actor.registry import register_learner
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape

_HELD_OUT = -1
"""Position, among samples, that the noise of held-out ones has: none of training has it."""


@register_learner("embodied_bc", schema=BehaviourCloningKeys)
class BehaviourCloningLearner(DemonstrationLearner):
    """Learns what was done.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32; or built
            without weights.
        place: where it runs.

    Raises:
        ValueError: the policy cannot be trained on given actions, or the data do not fit it.
    """

    defers_weights = True

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, model, place)
        engine = self.policy_engine(model)
        shape = UpdateShape(global_batch=self.batch_size, shuffles=False)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, place.seed, shape))
        demos = self.demos.to(engine.device)
        self._samples = ChunkSamples(demos, model.action_horizon)
        self._loss, self._micro_batch = cfg.algorithm.bc_loss, cfg.actor.micro_batch_size

    def held_out_loss(self) -> dict[str, float]:
        """Return the loss on the episodes that are not learned from; empty if there are none.

        Noise that it is drawn with is the same each time, and nothing of training changes. All
        ranks compute all of it, so that they run the model equally often.
        """
        rows, width = self.held_out, self.engine.model.sft_noise_width
        if not len(rows):
            return {}
        self.engine.onload(optimizer=False)
        noise = sample_noise(self._noise_seed, _HELD_OUT, len(rows), width) if width else None
        task = CloningTask(self.engine, self._samples, rows, self._loss, self._micro_batch, noise)
        return {"held_out_loss": task.mean_loss()}

    def update(self) -> dict[str, float]:
        """Make `runner.local_update_steps` optimiser steps; return metrics over all ranks."""
        self.engine.onload()
        width = self.engine.model.sft_noise_width
        noise = self.next_noise(width).flatten(0, 1) if width else None
        rows = self.next_rows()
        if self.fingerprints is not None:
            self.fingerprints.batch({"rows": rows})
        task = CloningTask(
            self.engine, self._samples, rows.flatten(), self._loss, self._micro_batch, noise
        )
        metrics = self.updates.run(task)
        self.tell_what_was_left_out(metrics, "no sample of the data counts")
        self.version += 1
        metrics["nan_skipped"] = float(self.engine.skipped)
        return metrics | self.data_metrics()
