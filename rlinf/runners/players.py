"""The groups that play episodes: envs, the policy in processes of its own or theirs, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.config.acting import ACTS_IN_ENV, policy_age
from rlinf.config.scoring import USES_REWARD_MODEL, uses_reward_model
from rlinf.scheduler import (
    Cluster,
    ComponentPlacement,
    WorkerGroup,
    WorkerGroupFuncResult,
    wait_all,
)
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.env.acting_env_worker import ActingEnvWorker
from rlinf.workers.env.async_acting_env_worker import AsyncActingEnvWorker
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.async_multi_step_rollout_worker import AsyncMultiStepRolloutWorker
from rlinf.workers.rollout.multi_step_rollout_worker import MultiStepRolloutWorker

Calls = tuple[WorkerGroupFuncResult, ...]
"""Calls that belong together; the first is that of the envs."""


def launch_players(
    cfg: Any, cluster: Cluster, placement: ComponentPlacement
) -> tuple[WorkerGroup, WorkerGroup]:
    """Launch the groups that play; return that of the rollout and that of the envs.

    Args:
        cfg: checked configuration, with `rollout.in_env_process` decided.
        cluster: where.
        placement: of its components.
    """
    ahead = policy_age(cfg) > 0
    acting_env_worker = AsyncActingEnvWorker if ahead else ActingEnvWorker
    plain_env_worker = AsyncEnvWorker if ahead else EnvWorker
    env_worker = acting_env_worker if cfg.rollout.in_env_process else plain_env_worker
    env = env_worker.create_group(cfg).launch(
        cluster, name=cfg.env.group_name, placement_strategy=placement.get_strategy("env")
    )
    if cfg.rollout.in_env_process:
        return env, env
    rollout_worker = AsyncMultiStepRolloutWorker if ahead else MultiStepRolloutWorker
    rollout = rollout_worker.create_group(cfg).launch(
        cluster, name=cfg.rollout.group_name, placement_strategy=placement.get_strategy("rollout")
    )
    return rollout, env


class Players:
    """Env workers, whoever acts for them, and whoever rewards that.

    Args:
        cfg: checked configuration.
        env: group of `EnvWorker`, or of `ActingEnvWorker`.
        rollout: group of `MultiStepRolloutWorker`; the same group as `env` if that one acts.
        reward: group of `EmbodiedRewardWorker`; None if rewards are those of the env.

    Attributes:
        together: whether the envs' processes act.
    """

    def __init__(
        self, cfg: Any, env: WorkerGroup, rollout: WorkerGroup, reward: WorkerGroup | None = None
    ):
        self.env, self.rollout, self.reward = env, rollout, reward
        self.together = env is rollout
        self._spec: EnvSpec | None = None
        if self.together != (cfg.rollout.in_env_process is True):
            raise ValueError(_MISPLACED[self.together])
        if (reward is not None) != (uses_reward_model(cfg) and not cfg.runner.only_eval):
            raise ValueError(_UNREWARDED[reward is not None])

    @property
    def groups(self) -> list[WorkerGroup]:
        """Those with something to remember, each once; rewards depend on nothing before."""
        return [self.env] if self.together else [self.rollout, self.env]

    @property
    def others(self) -> list[WorkerGroup]:
        """Those that the env workers exchange data with."""
        rollout = [] if self.together else [self.rollout]
        return rollout if self.reward is None else [*rollout, self.reward]

    def init_policy(self, spec: EnvSpec) -> WorkerGroupFuncResult:
        """Begin to build the policy.

        Args:
            spec: what it has to know of the envs.
        """
        self._spec = spec
        if self.together:
            return self.env.init_policy(spec)
        return self.rollout.init_worker(spec)

    def init_reward(self, spec: EnvSpec) -> Calls:
        """Begin to load the reward model, if there is one.

        Args:
            spec: what it has to know of the envs.
        """
        return () if self.reward is None else (self.reward.init_worker(spec),)

    @property
    def roles(self) -> list[str]:
        """Names of those who take part in a rollout, in the order of the calls of one."""
        rollout = [] if self.together else ["rollout"]
        return ["env", *rollout, *([] if self.reward is None else ["reward"])]

    def play_rollout(self, number: int, task_weights: Sequence[float] | None = None) -> Calls:
        """Begin a rollout.

        Args:
            number: what `cut_rollout` knows it by.
            task_weights: how often tasks are played; None leaves it as it is.
        """
        calls = [self.env.interact(task_weights, number)]
        if not self.together:
            calls.append(self.rollout.generate(number))
        if self.reward is not None:
            calls.append(self.reward.compute_rewards())
        return tuple(calls)

    def cut_rollout(self, number: int, ranks: list[int]) -> WorkerGroupFuncResult:
        """Let some of those who act end a rollout after the chunk under way.

        Args:
            number: of the rollout.
            ranks: of the rollout group.
        """
        return self.rollout.execute_on(*ranks).cut_rollout(number)

    def can_cut(self) -> bool:
        """Return whether an env process can end a rollout without others.

        It has one process that acts for it, or acts itself, and nobody scores it with others.
        """
        return self.reward is None and self.env.world_size % self.rollout.world_size == 0

    def play_episodes(self, count: int) -> Calls:
        """Begin to play the first episodes of an evaluation."""
        return self._served(self.env.evaluate(count))

    def record_episodes(self, numbers: list[int], folder: str) -> Calls:
        """Begin to play episodes of an evaluation and to write videos of them."""
        return self._served(self.env.record(numbers, folder))

    def _served(self, playing: WorkerGroupFuncResult) -> Calls:
        return (playing,) if self.together else (playing, self.rollout.evaluate())

    def revive(self) -> bool:
        """Give env processes that have just been restarted what they had.

        Returns:
            Whether they also act, and lack the weights.
        """
        # All of them: one that came back in an attempt in which another crashed has none yet.
        self.env.init_worker().wait()
        self.env.start_over().wait()
        self.env.set_rollouts(max(self.env.rollouts().wait())).wait()
        if not self.together or self._spec is None:
            return False
        self.env.init_policy(self._spec).wait()
        steps = max(self.env.policy_steps().wait())
        wait_all(self.env.set_policy_steps(steps))
        return True


_MISPLACED = {
    False: f"{ACTS_IN_ENV} is true, but there is a rollout group beside the env group: launch them "
    "by rlinf.runners.players.launch_players, as examples/embodiment/train_embodied_agent.py does, "
    "or set it to false",
    True: f"one group is given as env and as rollout, but {ACTS_IN_ENV} is not true: call "
    "rlinf.config.acting.resolve_acting(cfg) before groups are launched, or set it to true",
}

_UNREWARDED = {
    False: f"{USES_REWARD_MODEL} is true, but there is no reward group: launch it by "
    "rlinf.runners.reward_group.launch_reward, as examples/embodiment/train_embodied_agent.py "
    "does, or set it to false",
    True: f"there is a reward group, but {USES_REWARD_MODEL} is not true, or the run only "
    "evaluates: launch it by rlinf.runners.reward_group.launch_reward",
}
