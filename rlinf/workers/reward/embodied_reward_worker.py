"""`EmbodiedRewardWorker`: gives rollouts of envs the rewards of a reward model.

Env workers send it their half of each rollout, with the observations that actions led to; it sends
that half on to the actor, with other rewards. A rollout is scored as a whole when it has been
played, so that simulation never waits for the reward model, and a batch is a large one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.reward_model import model_rewards
from rlinf.data.embodied import (
    EnvTrajectory,
    UnscoredTrajectory,
    merge_trajectories,
    split_trajectory,
)
from rlinf.data.embodied_messages import ENV_TRAJECTORY
from rlinf.scheduler import Worker
from rlinf.utils.determinism import be_deterministic
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.reward.reward_models import load_reward_model

_MOST_SAMPLES = 4096
"""Observations of one pass of the model."""


class EmbodiedRewardWorker(Worker):
    """Computes the reward model for its share of the envs.

    Args:
        cfg: checked configuration with `reward.use_reward_model`.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, "reward", self._rank)
        self.cfg = cfg

    def init_worker(self, env_spec: EnvSpec) -> None:
        """Load the reward model.

        Args:
            env_spec: what the env observes.

        Raises:
            ValueError: there is no reward model, or it is for other observations.
        """
        device = torch.device(self.torch_device_type)
        self._model = load_reward_model(self.cfg.reward.model.model_path, env_spec, device)

    @Worker.timer("compute_rewards")
    def compute_rewards(self) -> dict[str, float]:
        """Score this rank's share of a rollout on its way from the envs to the actor.

        Returns:
            Sums over chunk steps, as `rlinf.runners.reward_group.reward_metrics` takes them.
        """
        train, stages = self.cfg.env.train, self.cfg.rollout.pipeline_stage_num
        totals: dict[str, float] = {}
        for part in [(e, s) for e in range(train.rollout_epoch) for s in range(stages)]:
            trajectory = self.recv_from(
                self.cfg.env.group_name,
                None,
                route_key=part,
                tag=ENV_TRAJECTORY,
                merge_fn=merge_trajectories,
            )
            with self.worker_timer("score"):
                scored, sums = self.score(trajectory)
            self.send_to(
                self.cfg.actor.group_name,
                None,
                scored,
                route_key=part,
                tag=ENV_TRAJECTORY,
                batch_size=train.total_num_envs // stages,
                split_fn=split_trajectory,
            )
            totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
        return totals

    def score(self, trajectory: UnscoredTrajectory) -> tuple[EnvTrajectory, dict[str, float]]:
        """Give a trajectory its rewards.

        Args:
            trajectory: of some envs.

        Returns:
            What the learner gets, and sums over the chunk steps that were carried out.
        """
        own = self.cfg.reward
        chances = self._probabilities(trajectory.outcomes)
        rewards = model_rewards(
            chances,
            trajectory.valid,
            (trajectory.terminations | trajectory.truncations).any(-1),
            reward_mode=own.reward_mode,
            reward_threshold=own.reward_threshold,
            use_reward_prob=own.use_reward_prob,
        )
        mixed = own.reward_weight * rewards + own.env_reward_weight * trajectory.rewards
        acted = trajectory.valid.any(-1)
        found = chances >= own.reward_threshold
        sums = {
            "steps": acted,
            "probability": torch.where(acted, chances, 0.0),
            "reward": mixed,
            "found": found & acted,
        }
        if trajectory.success is not None:
            sums["agreed"] = (found == trajectory.success) & acted
            sums["solved"] = trajectory.success & acted
            sums["wrongly_found"] = found & ~trajectory.success & acted
        return trajectory.scored(mixed), {name: float(s.sum()) for name, s in sums.items()}

    @torch.no_grad()
    def _probabilities(self, outcomes: dict[str, Tensor]) -> Tensor:
        """Return how likely the task is solved in observations `[T, B, ...]`, float32 `[T, B]`."""
        shape = next(iter(outcomes.values())).shape[:2]
        flat = {name: value.flatten(0, 1) for name, value in outcomes.items()}
        rows = torch.arange(shape.numel())
        parts = [
            self._model(observations={name: value[part] for name, value in flat.items()})
            for part in rows.split(_MOST_SAMPLES)
        ]
        return torch.cat(parts).sigmoid().cpu().view(shape)
