"""From a rollout to what a replay buffer takes, with what is not finite left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlinf.data.embodied import EmbodiedBatch, split_trajectory
from rlinf.data.replay import ReplayTrajectory
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.utils.not_finite import first_not_finite, is_finite


class RolloutRows:
    """Turns rollouts into trajectories of a replay buffer.

    Args:
        cfg: the configuration.
        engine: has the policy, which says what of an observation is kept.
        warn: tells the user something.

    Attributes:
        nan_skipped: steps of single envs left out so far, over all ranks, since an observation or
            a reward was not finite.
        env_steps: actions of the last rollout that were carried out, over all ranks.
    """

    def __init__(self, cfg: Any, engine: TrainEngine, warn: Callable[[str], None]) -> None:
        self._epochs = cfg.env.train.rollout_epoch if cfg.env.train is not None else 1
        self._stops = cfg.runner.on_nan == "stop"
        self._engine, self._warn = engine, warn
        self.nan_skipped = 0
        self.env_steps = 0.0

    def of(
        self, batch: EmbodiedBatch, env_ids: Sequence[int]
    ) -> tuple[list[ReplayTrajectory], dict[str, float]]:
        """Return the trajectories of a rollout, one for each epoch, and metrics over all ranks.

        Args:
            batch: this rank's share, epochs side by side.
            env_ids: numbers of its envs in the whole run; again for each epoch.

        Raises:
            FloatingPointError: a reward is not finite, and `runner.on_nan` is `stop`.
        """
        usable = batch.finite & self._finite_rewards(batch, env_ids)
        metrics = self._metrics(batch, usable)
        width = len(env_ids) // self._epochs
        parts = split_trajectory(batch, [width] * self._epochs)
        trajectories = []
        for epoch, part in enumerate(parts):
            columns = slice(epoch * width, (epoch + 1) * width)
            whole = ReplayTrajectory.of_rollout(
                part,
                {name: v for name, v in part.forward_inputs.items() if name != "action"},
                streams=list(env_ids[columns]),
            )
            actions = self._engine.model.replay_actions(part.actions, part.forward_inputs)
            trajectories.append(replace(whole, actions=actions, usable=usable[:, columns]))
        return trajectories, metrics

    def _finite_rewards(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> Tensor:
        """Mark steps `[T, B]` whose rewards are finite."""
        rewards = batch.rewards
        if is_finite(rewards):
            return torch.ones(rewards.shape[:2], dtype=torch.bool)
        (step, env, action), value = first_not_finite(rewards)
        message = (
            f"the reward of env {env_ids[env]} in step {step * rewards.shape[2] + action} of the "
            f"rollout is {value}"
        )
        if self._stops:
            raise FloatingPointError(
                f"{message}; look at the env, or leave such steps out with runner.on_nan: skip"
            )
        self._warn(f"{message}; this step is left out")
        return torch.isfinite(rewards).all(-1)

    def _metrics(self, batch: EmbodiedBatch, usable: Tensor) -> dict[str, float]:
        seen = batch.valid & usable[..., None]
        carried_out = batch.valid.any(-1)
        sums = torch.tensor(
            [
                float(torch.where(seen, batch.rewards, 0).sum()),
                float(seen.sum()),
                float(batch.valid.sum()),
                float((carried_out & ~usable).sum()),
                float((batch.intervened & batch.valid).sum()),
            ],
            dtype=torch.float64,
        )
        total, count, steps, lost, others = self._engine.all_reduce(sums).tolist()
        self.nan_skipped += int(lost)
        self.env_steps = steps
        return {"rewards": total / max(count, 1.0), "intervened": others / max(steps, 1.0)}
