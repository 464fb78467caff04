"""Estimators of the divergence between two policies from the log-probabilities of one's samples."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.config.suggest import did_you_mean, listed

_SAME = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_TYPES = ("k1", "k2", "k3", "abs")
GRADIENT_FREE = ("k1", "kl")
"""Estimators whose gradient is zero on average: for rewards, not for a loss."""
_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kl_penalty_type: str) -> Tensor:
    r"""Estimate KL(π ‖ π_ref) at actions sampled from π (Schulman, "Approximating KL divergence").

    With d = log π_ref(a) − log π(a):

    - `k1`, `kl`: −d. Unbiased, of either sign; as a loss its gradient is zero on average.
    - `k2`, `mse`: ½ d². As a loss it has, on policy, the gradient of the KL.
    - `k3`, `low_var_kl`: eᵈ − d − 1. Unbiased, never negative, of low variance. d is held within
      ±20 and the estimate below 10, so that one sample cannot drown a batch.
    - `abs`: |d|.

    Args:
        logprobs: log π, any shape.
        ref_logprobs: log π_ref, same shape.
        kl_penalty_type: One of the names above.

    Returns:
        The estimate per entry.

    Raises:
        ValueError: Unknown type.
    """
    kind = _SAME.get(kl_penalty_type, kl_penalty_type)
    if kind not in _TYPES:
        known = (*_TYPES, *_SAME)
        hint = did_you_mean(kl_penalty_type, known)
        raise ValueError(
            f"kl_penalty_type '{kl_penalty_type}' is unknown; "
            f"{hint + ' ' if hint else ''}known: {listed(known)}"
        )
    difference = ref_logprobs - logprobs
    if kind == "k1":
        return -difference
    if kind == "k2":
        return 0.5 * difference.square()
    if kind == "abs":
        return difference.abs()
    difference = difference.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (torch.expm1(difference) - difference).clamp(max=_MAX_K3)


def kl_penalised_rewards(
    rewards: Tensor,
    *,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    kl_beta: float,
    kl_penalty_type: str,
    loss_mask: Tensor | None = None,
) -> Tensor:
    """Take the divergence from the reference out of the rewards: r_t − β KL_t.

    Args:
        rewards: Of any shape, one per step or token.
        logprobs: Log-probabilities of the policy that acted, same shape.
        ref_logprobs: Those of the reference policy, same shape.
        kl_beta: β.
        kl_penalty_type: See `kl_penalty`.
        loss_mask: Same shape; steps outside keep their reward.

    Returns:
        Rewards of the same shape.
    """
    penalty = kl_beta * kl_penalty(logprobs.detach(), ref_logprobs, kl_penalty_type)
    if loss_mask is not None:
        penalty = torch.where(loss_mask.bool(), penalty, 0.0)
    return rewards - penalty
