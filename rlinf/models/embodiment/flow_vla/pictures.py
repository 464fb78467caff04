"""Pictures as networks of a fixed size see them: padded, or with their border cut off."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def padded_pictures(images: Tensor, size: int, centred: bool) -> Tensor:
    """Return pictures from -1 to 1, `[n, 3, size, size]` float32; padding is black.

    Args:
        images: `[n, H, W, 3]` uint8.
        size: New height and width.
        centred: Pad on all sides; else left and above.
    """
    pictures = images.permute(0, 3, 1, 2).float() / 255.0
    height, width = pictures.shape[2:]
    if (height, width) != (size, size):
        ratio = max(height, width) / size
        new = max(1, int(height / ratio)), max(1, int(width / ratio))
        pictures = functional.interpolate(pictures, new, mode="bilinear", align_corners=False)
        rows, columns = size - new[0], size - new[1]
        above, left = (rows // 2, columns // 2) if centred else (rows, columns)
        pictures = functional.pad(pictures, (left, columns - left, above, rows - above))
    return torch.clamp(pictures, 0.0, 1.0) * 2.0 - 1.0


def cropped_pictures(images: Tensor, size: int, share: float = 0.95) -> Tensor:
    """Return the middle of pictures, scaled without their aspect, `[n, 3, size, size]` float32.

    Values are from -1 to 1, in steps of 8 bits, as those of the pictures are.

    Args:
        images: `[n, H, W, 3]` uint8.
        size: New height and width.
        share: Of height and width that is left.
    """
    pictures = images.permute(0, 3, 1, 2).float() / 255.0
    for dim in (2, 3):
        whole = pictures.shape[dim]
        left = max(1, int(whole * share))
        pictures = pictures.narrow(dim, round((whole - left) / 2.0), left)
    pictures = functional.interpolate(
        pictures, (size, size), mode="bilinear", align_corners=False, antialias=True
    )
    return (torch.clamp(pictures, 0.0, 1.0) * 255.0).floor() / 127.5 - 1.0
