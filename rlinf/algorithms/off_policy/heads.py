"""One Q-value from those of several functions."""

from __future__ import annotations

import torch
from torch import Tensor


def aggregate(values: Tensor, how: str) -> Tensor:
    """Return the least or the mean of the Q-values of several functions.

    Args:
        values: `[Q, n, ...]`.
        how: `min`, `mean`, or `first` for that of the first function.

    Returns:
        `[n, ...]`.
    """
    if how == "min":
        # Two are the usual case, and for them this is quicker.
        return torch.minimum(*values) if len(values) == 2 else values.amin(0)
    if how == "mean":
        return values.mean(0)
    if how == "first":
        return values[0]
    raise ValueError(f"Q-values are aggregated by 'min', 'mean' or 'first', not '{how}'")


def draw_heads(heads: int, count: int | None, generator: torch.Generator) -> Tensor | None:
    """Draw functions that a target is made of, none twice (REDQ, Chen et al., 2021).

    Args:
        heads: Q, how many there are.
        count: How many to draw; None is all.
        generator: Where chance comes from, on the CPU and in the same state on all ranks.

    Returns:
        Their numbers, int64 `[count]`; None if all are used.

    Raises:
        ValueError: There are not so many.
    """
    if count is None or count == heads:
        return None
    if count > heads:
        raise ValueError(
            f"algorithm.critic_subsample_size is {count}, but there are {heads} Q-functions; "
            "raise actor.model.num_q_heads, or lower it"
        )
    return torch.randperm(heads, generator=generator)[:count]
