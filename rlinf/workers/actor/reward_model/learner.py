"""Trains a reward model on labelled observations of datasets."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlinf.algorithms.reward_model import class_weights, classification_scores
from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.success_frames import split_success_frames
from rlinf.hybrid_engines.initial_weights import initial_weights
from rlinf.workers.actor.learner import ACTOR, LearnerPlace
from rlinf.workers.actor.offline.dataset_learner import DatasetLearner
from rlinf.workers.actor.registry import register_learner
from rlinf.workers.actor.reward_model.classification_task import ClassificationTask
from rlinf.workers.actor.reward_model.config import RewardModelKeys
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape

_THRESHOLD = 0.5
"""Probability from which an observation counts as solved in evaluations."""


@register_learner("reward_model", schema=RewardModelKeys)
class RewardModelLearner(DatasetLearner):
    """Learns in which observations tasks are solved.

    Args:
        cfg: the configuration.
        model: the reward model, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Raises:
        ValueError: the data do not fit the model, or have not both solved and unsolved episodes.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        data = cfg.data
        folders = DemonstrationFolders(data.train_data_paths, data.observations, data.max_episodes)
        demos = folders.load(model.observation_names)
        train, held_out = split_success_frames(
            demos, data.val_fraction, place.seed, data.success_persists
        )
        super().__init__(cfg, place, len(train), train.num_episodes)
        if initial_weights(cfg) is None:
            model.update_normalizer(train.obs)
        balanced = cfg.algorithm.balance_classes
        self._weights = class_weights(train.labels) if balanced else (1.0, 1.0)
        self._solved = float(train.labels.float().mean())
        engine = self.policy_engine(model)
        shape = UpdateShape(global_batch=self.batch_size, shuffles=False)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, place.seed, shape))
        self._train, self._held_out = train.to(engine.device), held_out.to(engine.device)
        self._micro_batch = cfg.actor.micro_batch_size

    def update(self) -> dict[str, float]:
        """Make `runner.local_update_steps` optimiser steps; return metrics over all ranks."""
        self.engine.onload()
        rows = self.next_rows()
        if self.fingerprints is not None:
            self.fingerprints.batch({"rows": rows})
        task = ClassificationTask(
            self.engine, self._train, rows.flatten(), self._weights, self._micro_batch
        )
        metrics = self.updates.run(task)
        self.tell_what_was_left_out(metrics, "no sample of the data counts")
        self.version += 1
        metrics["nan_skipped"] = float(self.engine.skipped)
        return metrics | self.data_metrics() | {"data/solved": self._solved}

    def evaluate(self) -> dict[str, float]:
        """Judge the model by the episodes that were held out; all ranks call it."""
        self.engine.onload(optimizer=False)
        rows = torch.arange(len(self._held_out))
        parts = rows.split(self._micro_batch or self.batch_size)
        logits = torch.cat(
            [self.engine.infer(observations=self._held_out.take(part)[0]) for part in parts]
        )
        scores = classification_scores(logits, self._held_out.labels, _THRESHOLD)
        return scores | {
            "episodes": float(self._held_out.num_episodes),
            "samples": float(len(rows)),
        }
