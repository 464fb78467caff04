"""The actor of reward models: builds one for the data, trains it, and evaluates it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.models import get_model
from rlinf.scheduler import Worker
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.actor import Actor
from rlinf.workers.actor.registry import learner_of


class RewardModelActor(Actor):
    """Trains a reward model on datasets; needs no envs."""

    def init_worker(self, total_steps: int) -> None:
        """Build the model, as the data ask for it, and its learner.

        Args:
            total_steps: optimiser steps of the whole run.
        """
        data = self.cfg.data
        folders = DemonstrationFolders(data.train_data_paths, data.observations)
        self._env_spec = observed_sizes(folders.first_frame()[0])
        torch.manual_seed(self.seed)
        model = get_model(self.cfg.actor.model, self._env_spec, torch.float32)
        self._load_initial_weights(model)
        self._adopt(learner_of(self.cfg)(self.cfg, model, self._place(total_steps)), {})

    @Worker.timer("training")
    def run_training(self) -> dict[str, float]:
        """Train; return metrics over all ranks."""
        metrics = self.learner.update()
        self._offload()
        return metrics

    @Worker.timer("evaluate")
    def evaluate(self) -> dict[str, float]:
        """Judge the model by the episodes that were held out; return metrics."""
        metrics = self.learner.evaluate()
        self._offload()
        return metrics


def observed_sizes(obs: Mapping[str, Tensor]) -> EnvSpec:
    """Return the sizes of observations of a dataset, `[1, ...]` each."""
    states, image = obs.get("states"), obs.get("main_images")
    return EnvSpec(
        obs_dim=None if states is None else states.shape[-1],
        image_shape=None if image is None else tuple(image.shape[1:]),
    )
