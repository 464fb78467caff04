"""Trains an embodied agent whose envs go on meanwhile: train_embodied_agent.py, rollouts ahead."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig
from train_embodied_agent import train

from rlinf.config import validate_cfg
from rlinf.config.errors import ConfigError, Problem
from rlinf.runners.offline_data import require_demonstrations
from rlinf.runners.restarts import run_with_restarts
from rlinf.runners.reward_group import require_reward_model


@hydra.main(version_base="1.3", config_path="config", config_name="metaworld_async_ppo_mlp")
def main(cfg: DictConfig) -> None:
    """Check the configuration and train, again from the last checkpoint if the config says so."""
    cfg = validate_cfg(cfg)
    age = cfg.algorithm.max_policy_age
    if not age:
        message = "rollouts and updates would take turns"
        hint = "set it to 1, or use train_embodied_agent.py"
        raise ConfigError([Problem("algorithm.max_policy_age", age, message, hint)])
    require_demonstrations(cfg)
    require_reward_model(cfg)
    run_with_restarts(cfg, train)


if __name__ == "__main__":
    main()
