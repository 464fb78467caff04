"""The loop of a run that learns from data: the actor trains, env and rollout only evaluate."""

from __future__ import annotations

import time
from typing import Any

from rlinf.runners.fingerprints import RunFingerprints
from rlinf.runners.playing_runner import PlayingRunner
from rlinf.scheduler import WorkerGroup, wait_all
from rlinf.utils.runs.folders import shown

_BEST_METRICS = ("eval/success_once", "eval/return")
"""What ranks checkpoints, the first that is known."""
_EPISODES = "train/data/episodes"


class OfflineRunner(PlayingRunner):
    """Drives an actor through a dataset.

    A global step is `runner.local_update_steps` optimiser steps. Env and rollout workers have
    nothing to remember: checkpoints are those of the actor.

    Args:
        cfg: checked configuration.
        actor: group of `EmbodiedFSDPActor`, whose learner is an offline one.
        rollout: group of `MultiStepRolloutWorker`; the same group as `env` if that one acts.
        env: group of `EnvWorker`, or of `ActingEnvWorker`.
    """

    def __init__(self, cfg: Any, actor: WorkerGroup, rollout: WorkerGroup, env: WorkerGroup):
        super().__init__(cfg, actor, rollout, env, _BEST_METRICS, players_save=False)
        self.fingerprints = RunFingerprints(cfg, self.folder, actor)
        self.max_steps = cfg.runner.max_steps
        self.gradient_updates = self._updates_before = 0
        self._episodes = 0

    def build_workers(self) -> None:
        """Build simulators and policies, and read the data."""
        (env_futures,) = self.retry.play(lambda: (self.env.init_worker(),))
        spec = env_futures.wait()[0]
        steps = self.max_steps * self.cfg.runner.local_update_steps
        wait_all(self.players.init_policy(spec), self.actor.init_worker(spec, max(1, steps)))

    def init_workers(self) -> None:
        """Build the workers, or bring the actor back from a checkpoint."""
        super().init_workers()
        if not self.cfg.runner.only_eval:
            self.fingerprints.start(self.global_step)

    # -- a step ---------------------------------------------------------------------------------

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

    # -- the end ----------------------------------------------------------------------------------

    def totals(self, training_seconds: float) -> dict[str, Any]:
        """Speed of this run, without the steps before it was resumed."""
        updates = self.gradient_updates - self._updates_before
        batch = self.cfg.actor.global_batch_size
        return {
            "updates_per_second": round(updates / training_seconds, 1),
            "samples_per_second": round(updates * batch / training_seconds, 1),
        }

    def next_words(self) -> str:
        """Say what to try next."""
        return (
            "next: begin another recipe with its weights: rlinf train RECIPE "
            f"runner.ckpt_path={shown(self.folder)}"
        )
