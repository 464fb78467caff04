"""Slow copies of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def polyak_update(slow: Sequence[Tensor], fast: Sequence[Tensor], tau: float) -> None:
    """Move slow weights towards fast ones: `slow <- (1 - tau) slow + tau fast`, in place.

    Args:
        slow: Weights that follow.
        fast: Weights that lead, of the same shapes.
        tau: Share of the way.
    """
    torch._foreach_lerp_(list(slow), list(fast), tau)
