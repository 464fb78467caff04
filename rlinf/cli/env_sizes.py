"""Sizes of what envs give and take, before a run: from an env that opens quickly, or the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from rlinf.utils.env_spec import EnvSpec

Observations = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape of one env's observation and its format, by name."""


class SizesUnknown(ValueError):
    """Neither the env nor the config says the sizes before the run starts; says what to set."""


def env_sizes(cfg: Any) -> tuple[EnvSpec, Observations]:
    """Return the sizes that the env says, if it opens quickly, or else that the config says.

    Args:
        cfg: What `validate_cfg` returned, of an embodied training.

    Raises:
        SizesUnknown: Neither says them.
    """
    try:
        return sizes_of_env(cfg)
    except SizesUnknown as error:
        missing = error
    model = cfg.actor.model
    choices = model.get("action_choices")
    known = {
        "obs_dim": model.get("obs_dim"),
        "action_dim": model.get("action_dim") or (len(choices) if choices else None),
    }
    if known["action_dim"] is None or (known["obs_dim"] is None and model.get("use_states", True)):
        raise SizesUnknown(f"{missing}; set actor.model.obs_dim and actor.model.action_dim")
    return _of_config(model, known)


def sizes_of_env(cfg: Any) -> tuple[EnvSpec, Observations]:
    """Return the sizes that the training env says, made for that purpose if it opens quickly.

    Args:
        cfg: What `validate_cfg` returned, of an embodied training.

    Raises:
        SizesUnknown: It does not open quickly, or cannot be opened here.
    """
    from rlinf.envs import get_env_cls
    from rlinf.envs.errors import EnvError
    from rlinf.workers.env.describe_envs import describe_envs
    from rlinf.workers.env.env_settings import env_settings

    settings = env_settings(cfg, "train")
    OmegaConf.set_readonly(settings, False)
    settings.group_size = 1
    try:
        env_cls = get_env_cls(settings.env_type, settings)
        if not env_cls.opens_quickly:
            raise SizesUnknown(f"{settings.env_type} says its sizes only when it is started")
        env = env_cls(settings, 1)
    except (EnvError, ImportError, ValueError) as error:
        raise SizesUnknown(str(error)) from error
    try:
        return describe_envs([env], []), {
            key: (tuple(one.shape), torch.from_numpy(np.empty(0, one.dtype)).dtype)
            for key, one in env.obs_spec.items()
        }
    finally:
        env.close()


def _of_config(model: Any, known: Mapping[str, int | None]) -> tuple[EnvSpec, Observations]:
    observations: Observations = {}
    if known["obs_dim"] is not None:
        observations["states"] = ((known["obs_dim"],), torch.float32)
    size = model.get("image_size")
    image = None if size is None else (size, size, 3)
    if image is not None:
        observations["main_images"] = (image, torch.uint8)
        for key, count in (("wrist_images", "wrist_views"), ("extra_view_images", "extra_views")):
            if model.get(count):
                observations[key] = ((model.get(count), *image), torch.uint8)
    spec = EnvSpec(**known, image_shape=image, action_choices=model.get("action_choices"))
    return spec, observations
