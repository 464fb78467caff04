"""What a learner from a replay buffer reads of its configuration, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OffPolicySettings:
    """How batches become gradient steps; the config keys of the same names.

    Attributes:
        share: transitions of a batch that a rank has.
        total: transitions of a batch, over all ranks.
        micro_batch: transitions per forward and backward pass of a rank.
        steps: gradient steps after each rollout.
        critic_subsample_size: Q-functions that a target is made of; None is all.
        always_bootstrap: count the value of what follows a termination, too.
    """

    share: int
    total: int
    micro_batch: int
    steps: int
    critic_actor_ratio: int
    train_actor_steps: int
    target_update_freq: int
    agg_q: str
    actor_agg_q: str
    critic_subsample_size: int | None
    always_bootstrap: bool

    @classmethod
    def of(cls, cfg: Any, world_size: int) -> OffPolicySettings:
        """Read the settings.

        Args:
            cfg: the configuration.
            world_size: ranks of the actor.
        """
        algorithm, total = cfg.algorithm, cfg.actor.global_batch_size
        share, heads = total // world_size, algorithm.critic_subsample_size
        return cls(
            share=share,
            total=total,
            micro_batch=cfg.actor.micro_batch_size or share,
            steps=algorithm.update_epoch,
            critic_actor_ratio=algorithm.critic_actor_ratio,
            train_actor_steps=algorithm.train_actor_steps,
            # A learner without slow copies has no such key.
            target_update_freq=algorithm.get("target_update_freq", 1),
            agg_q=algorithm.agg_q,
            actor_agg_q=algorithm.actor_agg_q or algorithm.agg_q,
            critic_subsample_size=None if heads == -1 else heads,
            always_bootstrap=algorithm.bootstrap_type == "always",
        )
