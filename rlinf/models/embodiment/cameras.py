"""Pictures of the cameras that a vision-language policy looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

CAMERAS = ("main_images", "wrist_images", "extra_view_images")
"""Cameras in the order in which they are looked at."""


def camera_views(env_obs: Mapping[str, Any], wanted: int) -> list[Tensor]:
    """Return the pictures of the first cameras, each `[B, H, W, 3]` uint8.

    Args:
        env_obs: Observations, with pictures `[B, H, W, 3]` or `[B, V, H, W, 3]`.
        wanted: How many cameras.

    Raises:
        ValueError: There are fewer, or something else than pictures.
    """
    groups = camera_groups(env_obs, wanted).values()
    return [view for views in groups for view in views.unbind(1)]


def camera_groups(env_obs: Mapping[str, Any], wanted: int) -> dict[str, Tensor]:
    """Return the pictures of the first cameras by group, each `[B, V, H, W, 3]` uint8.

    Groups of which no camera is wanted are not asked for.

    Args:
        env_obs: As of `camera_views`.
        wanted: How many cameras.

    Raises:
        ValueError: There are fewer, or something else than pictures.
    """
    groups: dict[str, Tensor] = {}
    left = wanted
    for key in CAMERAS:
        images = env_obs.get(key) if left else None
        if images is None:
            continue
        images = torch.as_tensor(images)
        if images.dtype != torch.uint8 or images.shape[-1] != 3:
            raise ValueError(
                f"'{key}' must be pictures [..., H, W, 3] of uint8, not {list(images.shape)} of "
                f"{str(images.dtype).removeprefix('torch.')}"
            )
        images = images.unsqueeze(1) if images.dim() == 4 else images
        groups[key] = images[:, :left]
        left -= groups[key].shape[1]
    if left:
        raise ValueError(
            f"model.num_images_in_input is {wanted}, and the observations have pictures of "
            f"{wanted - left} camera(s) in {', '.join(CAMERAS)}"
        )
    return groups
