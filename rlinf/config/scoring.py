"""Whether rewards come from a reward model, and from which group of workers."""

from __future__ import annotations

from typing import Any

USES_REWARD_MODEL = "reward.use_reward_model"


def uses_reward_model(cfg: Any) -> bool:
    """Return whether the policy learns from the rewards of a reward model.

    Args:
        cfg: checked configuration; task types without such rewards have no `reward` section.
    """
    section = getattr(cfg, "reward", None)
    return section is not None and bool(getattr(section, "use_reward_model", False))


def env_trajectory_receiver(cfg: Any) -> str:
    """Return the name of the group that env workers send their half of rollouts to."""
    return cfg.reward.group_name if uses_reward_model(cfg) else cfg.actor.group_name


def env_trajectory_sender(cfg: Any) -> str:
    """Return the name of the group that the actor gets that half from."""
    return cfg.reward.group_name if uses_reward_model(cfg) else cfg.env.group_name
