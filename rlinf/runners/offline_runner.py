"""The loop of a policy that learns from data: the actor trains, env and rollout only evaluate."""

from __future__ import annotations

from typing import Any

from rlinf.runners.data_steps import DataSteps
from rlinf.runners.playing_runner import PlayingRunner
from rlinf.scheduler import WorkerGroup, wait_all
from rlinf.utils.runs.folders import shown

_BEST_METRICS = ("eval/success_once", "eval/return")
"""What ranks checkpoints, the first that is known."""


class OfflineRunner(DataSteps, PlayingRunner):
    """Drives an actor through a dataset, and lets others evaluate its policy.

    Env and rollout workers have nothing to remember: checkpoints are those of the actor.

    Args:
        cfg: checked configuration.
        actor: group of `EmbodiedFSDPActor`, whose learner is an offline one.
        rollout: group of `MultiStepRolloutWorker`; the same group as `env` if that one acts.
        env: group of `EnvWorker`, or of `ActingEnvWorker`.
    """

    def __init__(self, cfg: Any, actor: WorkerGroup, rollout: WorkerGroup, env: WorkerGroup):
        PlayingRunner.__init__(self, cfg, actor, rollout, env, _BEST_METRICS, players_save=False)
        self.begin_counting()

    def build_workers(self) -> None:
        """Build simulators and policies, and read the data."""
        (env_futures,) = self.retry.run(lambda: (self.env.init_worker(),))
        spec = env_futures.wait()[0]
        wait_all(self.players.init_policy(spec), self.actor.init_worker(spec, self.optimiser_steps))

    def next_words(self) -> str:
        """Say what to try next."""
        return (
            "next: begin another recipe with its weights: rlinf train RECIPE "
            f"runner.ckpt_path={shown(self.folder)}"
        )
