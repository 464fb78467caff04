"""The embodied training loop: sync weights, roll out, compute advantages, update."""

from __future__ import annotations

import time
from typing import Any

from rlinf.algorithms.registry import advantage_registry
from rlinf.config.acting import policy_age
from rlinf.config.arithmetic import learns_from_replay
from rlinf.runners.agreement import AgreementGate
from rlinf.runners.farewell import next_step
from rlinf.runners.fingerprints import RunFingerprints
from rlinf.runners.playing_runner import PlayingRunner
from rlinf.runners.reward_group import reward_metrics
from rlinf.runners.rollout_queue import RolloutQueue
from rlinf.runners.task_starts import TaskStarts
from rlinf.scheduler import WorkerDied, WorkerGroup, WorkerGroupFuncResult, give_up, wait_all
from rlinf.utils.env_spec import rollout_steps

_BEST_METRICS = ("eval/success_once", "eval/return", "env/success_once", "env/return")
"""What ranks checkpoints, the first that is known."""
_SOLVED = 0.9
"""Share of evaluated episodes that succeed when a task counts as learned."""
_COUNTS_OF_REPLAY = {
    "gradient_updates": "train/gradient_updates",
    "replay_size": "train/replay_buffer/total_samples",
    "demo_episodes": "train/demo_buffer/num_trajectories",
}
"""What the summary says of a learner from a replay buffer, and the metric that has it."""


class EmbodiedRunner(PlayingRunner):
    """Drives actor, rollout and env groups through training.

    Args:
        cfg: checked configuration.
        actor: group of `EmbodiedFSDPActor`.
        rollout: group of `MultiStepRolloutWorker`; the same group as `env` if that one acts.
        env: group of `EnvWorker`, or of `ActingEnvWorker`.
        reward: group of `EmbodiedRewardWorker`; None if rewards are those of the env.
    """

    def __init__(
        self,
        cfg: Any,
        actor: WorkerGroup,
        rollout: WorkerGroup,
        env: WorkerGroup,
        reward: WorkerGroup | None = None,
    ):
        limits = [n for n in (cfg.runner.max_epochs, cfg.runner.max_steps) if n > 0]
        if not limits and not cfg.runner.only_eval:
            raise ValueError("set runner.max_epochs or runner.max_steps: the run has no end")
        if cfg.runner.only_eval and cfg.env.eval is None:
            raise ValueError("runner.only_eval needs an env.eval section, and there is none")
        super().__init__(cfg, actor, rollout, env, _BEST_METRICS, reward=reward)
        self._ahead: int = 0 if cfg.runner.only_eval else policy_age(cfg)
        self.starts = TaskStarts(cfg)
        parts = hands_over_parts(cfg) and self.players.can_cut()
        self.rollouts = RolloutQueue(
            self.retry,
            lambda number: self.players.play_rollout(number, self.starts.weights),
            actor.recv_rollout_batch,
            self.players.cut_rollout if parts else None,
        )
        self.checkpoints.in_flight = self.rollouts.calls
        self.agreement = AgreementGate(cfg, actor, rollout)
        self.fingerprints = RunFingerprints(cfg, self.folder, actor)
        self.max_steps = min(limits, default=0)
        self.env_steps = 0
        self._rollout_seconds = self._update_seconds = 0.0
        self._policy_age_max = self._stale_dropped = 0
        self._steps_to_success: int | None = None
        self._steps_before = 0

    def build_workers(self) -> None:
        """Build simulators, policies and optimisers."""
        (env_futures,) = self.retry.run(lambda: (self.env.init_worker(),))
        spec = env_futures.wait()[0]
        if not self.cfg.runner.only_eval:
            train = self.cfg.env.train
            steps = rollout_steps(train, spec.train_steps)
            self.steps_per_rollout = train.total_num_envs * train.rollout_epoch * steps
            self._episode_steps = spec.train_steps
            self.starts.begin(spec.tasks)
        wait_all(
            self.players.init_policy(spec),
            *self.players.init_reward(spec),
            self.actor.init_worker(spec, self._optimiser_steps()),
        )

    def init_workers(self) -> None:
        """Build simulators, policies and optimisers, or bring them back from a checkpoint."""
        super().init_workers()
        if self.cfg.runner.only_eval:
            return
        if self.global_step % self.cfg.runner.weight_sync_interval:
            # Between two weight updates the rollout would act with weights of its own making.
            self.update_rollout_weights()
        self.fingerprints.start(self.global_step)

    def _optimiser_steps(self) -> int:
        if self.cfg.runner.only_eval:
            return 1
        algorithm = self.cfg.algorithm
        if learns_from_replay(self.cfg):
            return self.max_steps * algorithm.update_epoch
        samples = self.steps_per_rollout // self.cfg.actor.model.num_action_chunks
        batch = self.cfg.actor.global_batch_size or samples
        return self.max_steps * algorithm.update_epoch * max(1, samples // batch)

    # -- a step ---------------------------------------------------------------------------------

    def train_step(self) -> dict[str, float]:
        """Sync weights, rolls out, computes advantages, updates."""
        begin, before = time.perf_counter(), self.env_steps
        if self.global_step % self.cfg.runner.weight_sync_interval == 0:
            self.update_rollout_weights()
        env_metrics, times = self.generate_rollouts()
        metrics = env_metrics | times | self.agreement.check(self.global_step) | self.learn()
        self._count(metrics)
        self.fingerprints.note(self.global_step + 1)
        made = self.env_steps - before
        metrics["env/steps_per_second"] = made / (time.perf_counter() - begin)
        metrics["env/total_steps"] = float(self.env_steps)
        return metrics

    def generate_rollouts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Let env and rollout play while the actor receives; return metrics and times."""
        begin = time.perf_counter()
        left = self.max_steps - self.global_step
        rollout = self.rollouts.take(min(1 + self._ahead, left))
        played = rollout.calls
        results = played[0].wait()
        times = {"time/generate_rollouts": time.perf_counter() - begin}
        for role, futures in zip(self.players.roles, played, strict=True):
            for tag, seconds in self._durations(futures).items():
                times[f"time/{role}/{tag}"] = seconds
        self.env_steps += sum(result["env_steps"] for result in results)
        metrics = _merge_episodes(results, "env") | self.starts.note(results)
        metrics["env/restarts"] = metrics.get("env/restarts", 0.0) + self.retry.restarts
        if self._ahead:
            metrics["rollout/handed_over_early"] = float(len(rollout.cut))
        if self.players.reward is not None:
            metrics |= reward_metrics(played[-1].wait())
        return metrics, times

    def _durations(self, played: WorkerGroupFuncResult) -> dict[str, float]:
        """Return what a rollout took, by what was done; nothing if a process has died since."""
        try:
            return played.consume_durations()
        except WorkerDied as death:
            if not self.comes_back(death):
                raise
            return {}

    def learn(self) -> dict[str, float]:
        """Compute advantages and update the policy; return metrics."""
        begin = time.perf_counter()
        rollout = self.actor.compute_advantages_and_returns().wait()[0]
        middle = time.perf_counter()
        training = self.actor.run_training()
        train = training.wait()[0]
        metrics = {f"rollout/{name}": value for name, value in rollout.items()}
        metrics |= {f"train/{name}": value for name, value in train.items()}
        metrics["time/advantages"] = middle - begin
        metrics["time/training"] = time.perf_counter() - middle
        for tag, seconds in training.consume_durations().items():
            metrics[f"time/actor/{tag}"] = seconds
        return metrics

    def _count(self, metrics: dict[str, float]) -> None:
        """Add what a step took, and how old its samples were."""
        waited = metrics["time/generate_rollouts"]
        self._rollout_seconds += metrics.get("time/env/interact", waited)
        self._update_seconds += metrics["time/advantages"] + metrics["time/training"]
        age = int(metrics.get("rollout/policy_age_max", 0))
        self._policy_age_max = max(self._policy_age_max, age)
        self._stale_dropped += int(metrics.get("rollout/stale_dropped", 0))

    def _revive(self) -> None:
        self.rollouts.forget()
        super()._revive()

    def _run(self) -> dict[str, Any]:
        try:
            return super()._run()
        except BaseException:
            # Nobody will learn from rollouts under way: those who play them can end at once.
            give_up(*self.rollouts.calls())
            raise

    def in_flight(self) -> list[str]:
        """Rollouts that the learner has not got."""
        count = len(self.rollouts)
        if not count:
            return []
        return [
            f"{count} rollout(s) of {self.steps_per_rollout:,} env steps each, which were played "
            f"after step {self.global_step} and not trained on"
        ]

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        """Env steps, success, return, speed."""
        facts = {"env steps": f"{self.env_steps:,}"}
        if "env/success_once" in metrics:
            facts["success"] = f"{metrics['env/success_once']:.0%}"
        if "env/return" in metrics:
            facts["return"] = f"{metrics['env/return']:.1f}"
        facts["speed"] = f"{metrics['env/steps_per_second']:,.0f}/s"
        return facts

    def state(self) -> dict[str, Any]:
        """Env steps and restarts so far, and what the start sampler knows."""
        return {
            "env_steps": self.env_steps,
            "env_restarts": self.retry.restarts,
            "env_steps_to_success": self._steps_to_success,
            "starts": self.starts.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.env_steps = self._steps_before = state["env_steps"]
        if not self.cfg.runner.only_eval:
            self.retry.restarts = state["env_restarts"]
            # Checkpoints of earlier versions do not have these.
            self._steps_to_success = state.get("env_steps_to_success")
            self.starts.load_state(state.get("starts", {}))

    # -- evaluation -------------------------------------------------------------------------------

    def evaluation_cost(self) -> float | None:
        """Env steps of an evaluation, at most, by those of the training."""
        section = self.cfg.env.eval
        steps = None if section is None else section.max_episode_steps or self._episode_steps
        if steps is None:
            return None
        return self.cfg.runner.eval_episodes * steps / (self.max_steps * self.steps_per_rollout)

    def _evaluate_at_start(self) -> None:
        super()._evaluate_at_start()
        self._note_success(self._initial_evaluation or {})

    def _note_evaluation(self, found: dict[str, float]) -> None:
        super()._note_evaluation(found)
        self._note_success(found)

    def _note_success(self, found: dict[str, float]) -> None:
        solved = found.get("eval/success_once", 0.0) >= _SOLVED
        if solved and self._steps_to_success is None and not self.cfg.runner.only_eval:
            self._steps_to_success = self.env_steps

    # -- the end ----------------------------------------------------------------------------------

    def totals(self, training_seconds: float) -> dict[str, Any]:
        """Speed of this run, without the steps before it was resumed."""
        steps = self.env_steps - self._steps_before
        # A sample is what the policy decides on at a time.
        samples = steps / self.cfg.actor.model.num_action_chunks
        counts = {
            name: int(self._scores[metric])
            for name, metric in _COUNTS_OF_REPLAY.items()
            if metric in self._scores
        }
        return counts | {
            "env_steps_per_second": round(steps / training_seconds, 1),
            "samples_per_second": round(samples / training_seconds, 1),
            "env_steps_per_second_in_rollout": round(steps / max(self._rollout_seconds, 1e-9), 1),
            "rollout_seconds": round(self._rollout_seconds, 3),
            "update_seconds": round(self._update_seconds, 3),
            "policy_age_max": self._policy_age_max,
            "stale_dropped": self._stale_dropped,
        }

    def next_words(self) -> str:
        """Say what to try next."""
        return next_step(self.cfg, self.folder, self.summary.facts)


def hands_over_parts(cfg: Any) -> bool:
    """Return whether a learner can use a rollout that ends before the others do.

    It can where episodes go on in the next rollout, and the value of what follows is known: not
    where returns of whole episodes are compared, as in GRPO.

    Args:
        cfg: checked configuration.
    """
    if not policy_age(cfg) or cfg.runner.only_eval:
        return False
    train, algorithm = cfg.env.train, cfg.algorithm
    valued = learns_from_replay(cfg) or (
        cfg.actor.model.add_value_head
        and "values" in advantage_registry.arguments(algorithm.adv_type)
    )
    return valued and train.auto_reset and train.rollout_epoch == 1


def _merge_episodes(results: list[dict[str, Any]], prefix: str) -> dict[str, float]:
    """Return the means over all episodes of all workers, and how many there were."""
    count = sum(result["episodes"] for result in results)
    out = {f"{prefix}/episodes": float(count)}
    if count:
        for key in results[0]["sums"] or next(r["sums"] for r in results if r["sums"]):
            out[f"{prefix}/{key}"] = sum(r["sums"].get(key, 0.0) for r in results) / count
    for result in results:
        for key, value in result["counters"].items():
            out[f"{prefix}/{key}"] = out.get(f"{prefix}/{key}", 0.0) + value
    return out
