"""The loop of a run that learns from data: the actor trains, env and rollout only evaluate."""

from __future__ import annotations

import time
from typing import Any

from rlinf.runners.base_runner import BaseRunner
from rlinf.runners.evaluation import Evaluator
from rlinf.runners.farewell import before_training, places
from rlinf.runners.fingerprints import RunFingerprints
from rlinf.runners.players import Players
from rlinf.runners.rollout_retry import RolloutRetry
from rlinf.scheduler import WorkerDied, WorkerGroup, wait_all
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.evaluation_table import show_evaluation
from rlinf.utils.runs.folders import shown
from rlinf.workers.env.env_worker import max_env_restarts

_BEST_METRICS = ("eval/success_once", "eval/return")
"""What ranks checkpoints, the first that is known."""
_EPISODES = "train/data/episodes"


class OfflineRunner(BaseRunner):
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
        self.players = Players(cfg, env, rollout)
        super().__init__(cfg, [actor], _BEST_METRICS)
        self.actor, self.rollout, self.env = actor, rollout, env
        others = [actor] if self.players.together else [rollout, actor]
        self.retry = RolloutRetry(env, others, max_env_restarts(cfg), self._revive)
        self.evaluator = Evaluator(cfg, self.folder, self.players, self.retry, self.files)
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

    def comes_back(self, death: WorkerDied) -> bool:
        """Env processes do, as long as there is something left of their budget."""
        return self.retry.comes_back(death)

    # -- evaluation -------------------------------------------------------------------------------

    def update_rollout_weights(self) -> None:
        """Bring the actor's weights to the rollout workers."""
        wait_all(self.actor.sync_model_to_rollout(), self.rollout.sync_model_from_actor())

    def _revive(self) -> None:
        """Give restarted env processes what they had."""
        if self.players.revive():
            self.update_rollout_weights()

    def load_policy(self, checkpoint: Checkpoint) -> None:
        """Take the policy, and nothing else."""
        self.evaluator.checkpoint = checkpoint.path
        self.actor.load_policy(str(checkpoint.path)).wait()

    def evaluate(self) -> dict[str, float]:
        """Play the evaluation's episodes without noise; return metrics."""
        return self.evaluator.evaluate(self.global_step, self.update_rollout_weights).metrics()

    def final_evaluation(self) -> dict[str, float]:
        """Return the evaluation's episodes, and videos of some."""
        found = self.evaluator.final(self.global_step, self.update_rollout_weights)
        if self.evaluator.video is not None:
            self.summary.facts["video"] = self.evaluator.video
        return found.metrics()

    # -- the end ----------------------------------------------------------------------------------

    def totals(self, training_seconds: float) -> dict[str, Any]:
        """Speed of this run, without the steps before it was resumed."""
        updates = self.gradient_updates - self._updates_before
        batch = self.cfg.actor.global_batch_size
        return {
            "updates_per_second": round(updates / training_seconds, 1),
            "samples_per_second": round(updates * batch / training_seconds, 1),
        }

    def farewell(self, final: dict[str, float]) -> None:
        """Success, video, where everything is, and what to try next."""
        if final:
            show_evaluation(self.evaluator.last)
            print(self.evaluator.last.sentence())
        if (before := before_training(self.summary.facts)) is not None:
            print(before)
        if "video" in self.summary.facts:
            print(f"video: {self.summary.facts['video']}")
        if self.cfg.runner.only_eval:
            print(f"everything is in {shown(self.folder)}")
            return
        print(places(self.cfg, self.folder))
        print(
            "next: begin another recipe with its weights: rlinf train RECIPE "
            f"runner.ckpt_path={shown(self.folder)}"
        )
