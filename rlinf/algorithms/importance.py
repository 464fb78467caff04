"""Weights for samples that another policy, or another engine, drew."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.algorithms.sequences import sequence_mean, sequence_sum


def interpolate_proximal(
    logprobs: Tensor, old_logprobs: Tensor, versions: Tensor, current_version: int
) -> Tensor:
    """Approximate the proximal log-probabilities without a forward pass.

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


def mismatch_weights(
    logprobs: Tensor,
    sampled_logprobs: Tensor,
    *,
    level: str = "token",
    mode: str = "truncate",
    low: float = 0.0,
    high: float = 2.0,
    mask: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Correct for samples that were drawn with other probabilities than the trainer's.

    The engine computes otherwise, and its weights may be older. With ρ_t = π_trainer / π_engine:

    | level | mode | w_t | |
    |---|---|---|---|
    | `token` | `truncate` | clamp(ρ_t, low, high) | truncated importance sampling |
    | `token` | `mask` | ρ_t where low ≤ ρ_t ≤ high, else 0 | IcePop |
    | `sequence` | `truncate` | clamp(Π ρ, low, high) | |
    | `sequence` | `mask` | Π ρ where it is within, else 0 | masked importance sampling |
    | `geometric` | `mask` | 1 where low ≤ exp(mean log ρ) ≤ high, else 0 | geometric rejection |

    Products and means are over the valid tokens of the sequence.

    Args:
        logprobs: log π_trainer, `[B, L]`; or `[R]`, the tokens of all sequences end to end.
        sampled_logprobs: log π_engine, same shape.
        level: `token`, `sequence` or `geometric`.
        mode: `truncate` or `mask`.
        low: Least ratio.
        high: Greatest ratio.
        mask: Valid tokens, same shape; None is all.
        sequence_ids: Number of the sequence of each token, `[R]`; None when rows are sequences.

    Returns:
        Weights of the same shape without gradient, 1 at masked tokens; and where the ratio is
        outside of the bounds, bool.

    Raises:
        ValueError: Unknown level or mode, or `geometric` with `truncate`.
    """
    if level not in ("token", "sequence", "geometric"):
        raise ValueError(f"mismatch.level is '{level}'; allowed: token, sequence, geometric")
    if mode not in ("truncate", "mask"):
        raise ValueError(f"mismatch.mode is '{mode}'; allowed: truncate, mask")
    if level == "geometric" and mode == "truncate":
        raise ValueError(
            "mismatch.level is 'geometric', which drops sequences and weighs none; set "
            "mismatch.mode to mask"
        )
    log_ratio = (logprobs - sampled_logprobs).detach()
    if mask is not None:
        mask = mask.bool()
        log_ratio = torch.where(mask, log_ratio, 0.0)
    if level == "sequence":
        log_ratio = sequence_sum(log_ratio, sequence_ids)
    elif level == "geometric":
        log_ratio = sequence_mean(log_ratio, mask, sequence_ids)
    ratio = log_ratio.exp()
    outside = (ratio < low) | (ratio > high)
    if mode == "truncate":
        weights = ratio.clamp(low, high)
    else:
        kept = torch.ones_like(ratio) if level == "geometric" else ratio
        weights = torch.where(outside, 0.0, kept)
    if mask is None:
        return weights, outside
    return torch.where(mask, weights, 1.0), outside & mask
