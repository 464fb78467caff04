"""The section of an env with what it leaves to other sections filled in."""

from __future__ import annotations

import copy
from typing import Any

from omegaconf import OmegaConf

_ON_NAN = {"stop": "error", "skip": "skip"}


def env_settings(cfg: Any, role: str) -> Any:
    """Return `env.train` or `env.eval`, complete.

    Envs of a group start alike: without a `group_size` of their own, training envs have that of
    the algorithm. Seeds are those of the run, and a NaN does what `runner.on_nan` says, unless the
    env says otherwise. Evaluations play whole episodes: where a rollout has a length and an episode
    none, they are as long as a rollout.

    Args:
        cfg: the whole configuration, which is not changed.
        role: `train` or `eval`.
    """
    inherited = {"on_nan": _ON_NAN[cfg.runner.on_nan], "seed": cfg.runner.seed}
    if role == "train":
        inherited["group_size"] = cfg.algorithm.group_size
    else:
        inherited["max_episode_steps"] = cfg.env.eval.max_steps_per_rollout_epoch
    section = copy.deepcopy(cfg.env[role])
    OmegaConf.set_readonly(section, False)
    for key, value in inherited.items():
        if key in section and section[key] is None:
            section[key] = value
    OmegaConf.set_readonly(section, True)
    return section
