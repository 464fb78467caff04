"""Images as envs send them: checked, scaled and shifted, all as [n, V, H, W, C] uint8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def as_views(images: Any, views: int, channels: int, name: str) -> Tensor:
    """Return the images of one group of cameras.

    Args:
        images: [B, H, W, C] or [B, V, H, W, C], uint8.
        views: V, how many cameras there must be.
        channels: C, how many channels an image must have.
        name: Key of the observation, for the message.

    Returns:
        [B, V, H, W, C] uint8.

    Raises:
        ValueError: They are absent, of another type or shape, or from other cameras.
    """
    if images is None:
        raise ValueError(f"the policy needs '{name}', which the observations do not have")
    images = torch.as_tensor(images)
    if images.dtype != torch.uint8 or images.dim() not in (4, 5) or images.shape[-1] != channels:
        raise ValueError(
            f"'{name}' must be [B, H, W, {channels}] or [B, views, H, W, {channels}] of uint8, not "
            f"{list(images.shape)} of {str(images.dtype).removeprefix('torch.')}"
        )
    if images.dim() == 4:
        images = images.unsqueeze(1)
    if images.shape[1] != views:
        raise ValueError(
            f"the policy was built for {views} camera(s) in '{name}', there are {images.shape[1]}"
        )
    return images


def scaled(images: Tensor, size: int, mode: str = "bilinear") -> Tensor:
    """Return images of the given height and width; those that fit are not copied.

    Args:
        images: [n, V, H, W, C] uint8.
        size: New height and width.
        mode: How to interpolate: `bilinear` or `bicubic`.

    Returns:
        [n, V, size, size, C] uint8.
    """
    count, views, height, width, channels = images.shape
    if (height, width) == (size, size):
        return images
    flat = images.reshape(-1, height, width, channels).permute(0, 3, 1, 2).float()
    flat = functional.interpolate(flat, (size, size), mode=mode, antialias=True)
    flat = flat.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return flat.reshape(count, views, size, size, channels)


def whole_shifts(noise: Tensor, most: int) -> Tensor:
    """Return whole numbers from -most to most, all as likely.

    Args:
        noise: Standard normal; it decides.
        most: Greatest shift.
    """
    share = torch.special.ndtr(noise.float())
    return (share * (2 * most + 1)).long().clamp(max=2 * most) - most


def shifted(images: Tensor, shift: Tensor) -> Tensor:
    """Return every image moved by its own offset; border pixels are repeated.

    Args:
        images: [n, V, H, W, C].
        shift: Rows and columns, [n, 2] whole numbers; all views of a sample move alike.

    Returns:
        [n, V, H, W, C].
    """
    count, _, height, width, _ = images.shape
    device = images.device
    rows = (torch.arange(height, device=device) + shift[:, :1]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=device) + shift[:, 1:]).clamp_(0, width - 1)
    sample = torch.arange(count, device=device)[:, None, None]
    # The slice between the indexed dimensions moves to the end of the indexed ones.
    return images[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2, 4)
