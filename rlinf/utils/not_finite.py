"""Finds NaN and infinity in tensors: one cheap sum when all is well, a search when it is not."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor holds neither NaN nor infinity."""
    if not tensor.is_floating_point():
        return True
    # A NaN or an infinity makes the sum not finite. So may an overflow, which the search clears.
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


def first_not_finite(tensor: Tensor) -> tuple[list[int], float]:
    """Return the index of the first NaN or infinity, and which of them it is.

    Args:
        tensor: one for which `is_finite` is false.
    """
    index = (~torch.isfinite(tensor)).nonzero()[0].tolist()
    return index, float(tensor[tuple(index)])
