"""What runners share whose policy plays in envs: weights go there, and it is evaluated there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from rlinf.runners.base_runner import BaseRunner
from rlinf.runners.evaluation import Evaluator
from rlinf.runners.farewell import before_training, places
from rlinf.runners.players import Players
from rlinf.runners.restarting_calls import RestartingCalls
from rlinf.scheduler import WorkerDied, WorkerGroup, WorkerGroupFuncResult, wait_all
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.evaluation_table import show_evaluation
from rlinf.utils.runs.folders import shown
from rlinf.workers.env.env_worker import max_env_restarts


class PlayingRunner(BaseRunner):
    """Drives an actor, and groups that play with its policy.

    Args:
        cfg: checked configuration.
        actor: group of `EmbodiedFSDPActor`.
        rollout: group of `MultiStepRolloutWorker`; the same group as `env` if that one acts.
        env: group of `EnvWorker`, or of `ActingEnvWorker`.
        best_metrics: what ranks checkpoints, the first that is known.
        players_save: whether those who play have something to remember in checkpoints.
        reward: group of `EmbodiedRewardWorker`; None if rewards are those of the env.
    """

    def __init__(
        self,
        cfg: Any,
        actor: WorkerGroup,
        rollout: WorkerGroup,
        env: WorkerGroup,
        best_metrics: Sequence[str],
        players_save: bool = True,
        reward: WorkerGroup | None = None,
    ):
        self.players = Players(cfg, env, rollout, reward)
        saved = self.players.groups if players_save else []
        super().__init__(cfg, [actor, *saved], best_metrics)
        self.actor, self.rollout, self.env = actor, rollout, env
        others = [*self.players.others, actor]
        self.retry = RestartingCalls(env, others, max_env_restarts(cfg), self._revive)
        self.evaluator = Evaluator(cfg, self.folder, self.players, self.retry, self.files)

    def update_rollout_weights(self) -> None:
        """Bring the actor's weights to those who act."""
        if self.players.together:
            # An env process that crashes here comes back, as in a rollout.
            self.retry.run(self._send_weights)
        else:
            wait_all(*self._send_weights())

    def _send_weights(self) -> tuple[WorkerGroupFuncResult, ...]:
        return self.rollout.sync_model_from_actor(), self.actor.sync_model_to_rollout()

    def _revive(self) -> None:
        """Give restarted env processes what they had."""
        if self.players.revive():
            wait_all(*self._send_weights())

    def comes_back(self, death: WorkerDied) -> bool:
        """Env processes do, as long as there is something left of their budget."""
        return self.retry.comes_back(death)

    # -- evaluation -------------------------------------------------------------------------------

    def load_policy(self, checkpoint: Checkpoint) -> None:
        """Take the policy, and nothing else."""
        self.evaluator.checkpoint = checkpoint.path
        self.actor.load_policy(str(checkpoint.path)).wait()

    def evaluate(self) -> dict[str, float]:
        """Play the evaluation's episodes without noise; return metrics."""
        return self.evaluator.evaluate(self.global_step, self.update_rollout_weights).metrics()

    def final_evaluation(self) -> dict[str, float]:
        """Return the evaluation's episodes, and videos of some."""
        if self.cfg.env.eval is None:
            return {}
        found = self.evaluator.final(self.global_step, self.update_rollout_weights)
        if self.evaluator.video is not None:
            self.summary.facts["video"] = self.evaluator.video
        return found.metrics()

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
        print(self.next_words())

    @abstractmethod
    def next_words(self) -> str:
        """Say what to try next."""
