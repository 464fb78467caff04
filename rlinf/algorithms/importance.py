"""Weights for samples that another policy, or another engine, drew."""

from __future__ import annotations

import torch
from torch import Tensor


def interpolate_proximal(
    logprobs: Tensor, old_logprobs: Tensor, versions: Tensor, current_version: int
) -> Tensor:
    """Approximates the proximal log-probabilities without a forward pass.

    With v the version that this update makes, v_b the one that sampled and v − 1 the proximal one,
    log π_prox = log π_b + α (log π − log π_b), α = (v − 1 − v_b) / (v − v_b) in [0, 1]: fresh
    samples (v_b = v − 1) have π_prox = π_b. α is 0 where the version is unknown (negative).

    Args:
        logprobs: log π, `[n, ...]`.
        old_logprobs: log π_b of the policy that sampled, same shape.
        versions: v_b, broadcast to that shape.
        current_version: v.

    Returns:
        log π_prox, same shape, without gradient.
    """
    age = (current_version - versions).to(old_logprobs.dtype)
    alpha = ((age - 1) / age.clamp(min=1)).clamp(0, 1)
    alpha = torch.where((versions < 0) | (age <= 0), 0.0, alpha)
    return old_logprobs + alpha * (logprobs.detach() - old_logprobs)


def truncated_importance_weights(
    logprobs: Tensor,
    sampled_logprobs: Tensor,
    *,
    clip: float,
    level: str = "token",
    mask: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Corrects for an engine that sampled with slightly other probabilities than the trainer's.

    w = min(exp(log π_trainer − log π_engine), clip), per token, or per sequence with the log-ratios
    summed over its valid tokens.

    Args:
        logprobs: log π_trainer, `[B, L]`; or `[R]`, the tokens of all sequences end to end.
        sampled_logprobs: log π_engine, same shape.
        clip: Greatest weight.
        level: `token` or `sequence`.
        mask: Valid tokens, same shape; None is all.
        sequence_ids: Number of the sequence of each token, `[R]`; None when rows are sequences.

    Returns:
        Weights of the same shape without gradient, 1 at masked tokens.

    Raises:
        ValueError: Unknown level.
    """
    if level not in ("token", "sequence"):
        raise ValueError(f"importance_sampling_level is '{level}'; allowed: token, sequence")
    log_ratio = (logprobs - sampled_logprobs).detach()
    if mask is not None:
        log_ratio = torch.where(mask.bool(), log_ratio, 0.0)
    if level == "sequence" and sequence_ids is not None:
        totals = log_ratio.new_zeros(int(sequence_ids.max()) + 1 if len(sequence_ids) else 0)
        log_ratio = totals.index_add(0, sequence_ids, log_ratio)[sequence_ids]
    elif level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    weights = log_ratio.exp().clamp(max=clip)
    return weights if mask is None else torch.where(mask.bool(), weights, 1.0)
