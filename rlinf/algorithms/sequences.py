"""Sums and means over the tokens of each sequence, laid out in rows or end to end."""

from __future__ import annotations

import torch
from torch import Tensor


def sequence_sum(values: Tensor, sequence_ids: Tensor | None = None) -> Tensor:
    """Return, at each entry, the sum over the entries of its sequence.

    Args:
        values: `[B, ...]`, a row per sequence; or `[R]`, the tokens of all sequences end to end.
        sequence_ids: Number of the sequence of each token, int64 `[R]`; None when rows are
            sequences.

    Returns:
        Of the shape of `values`.

    Raises:
        ValueError: Tokens are end to end, and nothing says which belong together.
    """
    if sequence_ids is not None:
        totals = values.new_zeros(int(sequence_ids.max()) + 1 if len(sequence_ids) else 0)
        return totals.index_add(0, sequence_ids, values)[sequence_ids]
    if values.ndim < 2:
        raise ValueError(
            f"values of the shape {tuple(values.shape)} have no rows; pass sequence_ids, the "
            "number of the sequence of each token"
        )
    return values.sum(tuple(range(1, values.ndim)), keepdim=True).expand_as(values)


def sequence_mean(
    values: Tensor, mask: Tensor | None = None, sequence_ids: Tensor | None = None
) -> Tensor:
    """Return, at each entry, the mean over the valid entries of its sequence.

    Args:
        values: As for `sequence_sum`; masked entries may hold anything.
        mask: Valid entries, broadcast to the shape of `values`; None is all.
        sequence_ids: As for `sequence_sum`.

    Returns:
        Of the shape of `values`; 0 in sequences without a valid entry.
    """
    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    mask = mask.bool().expand_as(values)
    total = sequence_sum(torch.where(mask, values, 0.0), sequence_ids)
    count = sequence_sum(mask.to(values.dtype), sequence_ids)
    return total / count.clamp(min=1)
