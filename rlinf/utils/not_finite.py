"""Finds NaN and infinity in tensors: one cheap sum when all is well, a search when it is not."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_OF_NUMPY = (torch.float32, torch.float64)


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor holds neither NaN nor infinity."""
    if not tensor.is_floating_point():
        return True
    # A NaN or an infinity makes the sum not finite. So may an overflow, which the search clears.
    return math.isfinite(_total(tensor)) or bool(torch.isfinite(tensor).all())


def first_not_finite(tensor: Tensor) -> tuple[list[int], float]:
    """Return the index of the first NaN or infinity, and which of them it is.

    Args:
        tensor: one for which `is_finite` is false.
    """
    index = (~torch.isfinite(tensor)).nonzero()[0].tolist()
    return index, float(tensor[tuple(index)])


def _total(tensor: Tensor) -> float:
    if tensor.is_cpu and tensor.dtype in _OF_NUMPY:
        # Several times as quick where the tensor is small, as observations are.
        return float(np.add.reduce(tensor.numpy(force=True), axis=None))
    return float(tensor.sum())
