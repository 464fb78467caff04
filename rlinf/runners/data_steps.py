"""The steps of runs that learn from data: optimiser steps of the actor, and their counts."""

from __future__ import annotations

import time
from typing import Any

from rlinf.runners.base_runner import BaseRunner
from rlinf.runners.fingerprints import RunFingerprints
from rlinf.scheduler import WorkerGroup

_EPISODES = "train/data/episodes"


class DataSteps(BaseRunner):
    """Drives an actor through a dataset.

    A global step is `runner.local_update_steps` optimiser steps. A subclass has an actor, and says
    how it is evaluated.
    """

    actor: WorkerGroup

    def begin_counting(self) -> None:
        """Get ready for the first step; called by constructors."""
        self.fingerprints = RunFingerprints(self.cfg, self.folder, self.actor)
        self.max_steps = self.cfg.runner.max_steps
        self.gradient_updates = self._updates_before = 0
        self._episodes = 0

    @property
    def optimiser_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return max(1, self.max_steps * self.cfg.runner.local_update_steps)

    def init_workers(self) -> None:
        """Build the workers, or bring the actor back from a checkpoint."""
        super().init_workers()
        if not self.cfg.runner.only_eval:
            self.fingerprints.start(self.global_step)

    def train_step(self) -> dict[str, float]:
        """Let the actor make its optimiser steps."""
        begin = time.perf_counter()
        training = self.actor.run_training()
        metrics = {f"train/{name}": value for name, value in training.wait()[0].items()}
        metrics["time/training"] = seconds = time.perf_counter() - begin
        for tag, spent in training.consume_durations().items():
            metrics[f"time/actor/{tag}"] = spent
        self.gradient_updates += int(metrics["train/actor/updates"])
        metrics["train/gradient_updates"] = float(self.gradient_updates)
        self._episodes = int(metrics.get(_EPISODES, 0))
        metrics["train/updates_per_second"] = metrics["train/actor/updates"] / seconds
        self.fingerprints.note(self.global_step + 1)
        return metrics

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        """Updates, loss, speed."""
        facts = {"updates": f"{self.gradient_updates:,}"}
        if "train/actor/loss" in metrics:
            facts["loss"] = f"{metrics['train/actor/loss']:.4g}"
        facts["speed"] = f"{metrics['train/updates_per_second']:,.0f} updates/s"
        return facts

    def state(self) -> dict[str, Any]:
        """Optimiser steps so far, and how many episodes they were made with."""
        return {"gradient_updates": self.gradient_updates, "demo_episodes": self._episodes}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.gradient_updates = self._updates_before = state["gradient_updates"]
        self._episodes = state["demo_episodes"]

    def totals(self, training_seconds: float) -> dict[str, Any]:
        """Speed of this run, without the steps before it was resumed."""
        updates = self.gradient_updates - self._updates_before
        batch = self.cfg.actor.global_batch_size
        return {
            "updates_per_second": round(updates / training_seconds, 1),
            "samples_per_second": round(updates * batch / training_seconds, 1),
        }
