"""The actor of reward models: builds one for the data, trains it, and evaluates it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.hybrid_engines.initial_weights import load_initial_weights
from rlinf.models import get_model
from rlinf.scheduler import Worker
from rlinf.utils.checkpoint import save_tree
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.actor import Actor
from rlinf.workers.actor.registry import learner_of
from rlinf.workers.checkpointed import Job


class RewardModelActor(Actor):
    """Trains a reward model on datasets; needs no envs."""

    def init_worker(self, total_steps: int) -> None:
        """Build the model, as the data ask for it, and its learner.

        Args:
            total_steps: optimiser steps of the whole run.
        """
        data = self.cfg.data
        folders = DemonstrationFolders(data.train_data_paths, data.observations)
        self._spec = observed_sizes(folders.first_frame()[0])
        torch.manual_seed(self.seed)
        model = get_model(self.cfg.actor.model, self._spec, torch.float32)
        load_initial_weights(model, self.cfg)
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

    def _snapshot(self, folder: Path) -> Job:
        write_rest = super()._snapshot(folder)

        def write() -> None:
            write_rest()
            if self._rank == 0:
                # Whoever uses the model has to know what it looks at.
                save_tree(folder / "actor" / "env_spec", asdict(self._spec))

        return write


def observed_sizes(obs: Mapping[str, Tensor]) -> EnvSpec:
    """Return the sizes of observations of a dataset, `[1, ...]` each."""
    states, image = obs.get("states"), obs.get("main_images")
    return EnvSpec(
        obs_dim=None if states is None else states.shape[-1],
        image_shape=None if image is None else tuple(image.shape[1:]),
    )
