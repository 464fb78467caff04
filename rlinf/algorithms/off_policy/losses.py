"""Losses of critics, actor and temperature.

Each is a sum over the samples at hand, divided by the samples of the global batch, so that the
gradients of micro-batches and ranks add up.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


def critic_loss(
    values: Tensor, target: Tensor, total: int, weights: Tensor | None = None
) -> Tensor:
    """Return half of the squared error of each Q-function, summed over them.

    Args:
        values: `[Q, n]`.
        target: `[n]`, without gradients.
        total: Samples of the global batch.
        weights: Importance of each sample, `[n]`; None is 1.
    """
    error = values - target
    squares = error * error if weights is None else error * error * weights
    return squares.sum() * (0.5 / total)


def actor_loss(values: Tensor, logprobs: Tensor, alpha: Tensor, total: int) -> Tensor:
    """Return `E[alpha log pi(a|s) - Q(s, a)]` for sampled actions.

    Args:
        values: Q of sampled actions, `[n]`.
        logprobs: Of the same actions, `[n]`.
        alpha: Weight of entropy, without gradient.
        total: Samples of the global batch.
    """
    return (alpha * logprobs - values).sum() / total


def actor_loss_of_choices(values: Tensor, log_probs: Tensor, alpha: Tensor, total: int) -> Tensor:
    """Return `E[sum_a pi(a|s) (alpha log pi(a|s) - Q(s, a))]`, without sampling.

    Args:
        values: Q of all choices, `[n, D, N]`.
        log_probs: Of all choices, `[n, D, N]`.
        alpha: Weight of entropy, without gradient.
        total: Samples of the global batch.
    """
    return (log_probs.exp() * (alpha * log_probs - values)).sum() / total


def temperature(base: Tensor, kind: Literal["exp", "softplus"]) -> Tensor:
    """Return alpha for the number that is trained."""
    return base.exp() if kind == "exp" else functional.softplus(base)


def temperature_base(alpha: float, kind: Literal["exp", "softplus"]) -> Tensor:
    """Return the number for which `temperature` gives alpha."""
    value = torch.tensor(alpha, dtype=torch.float64)
    base = value.log() if kind == "exp" else value + torch.log(-torch.expm1(-value))
    return base.float()


def temperature_gradient(
    base: Tensor, entropy: Tensor, target_entropy: float, kind: Literal["exp", "softplus"]
) -> Tensor:
    """Return the gradient of `alpha (H - H_target)` in the number that is trained.

    Args:
        base: That number.
        entropy: H, mean entropy of the policy over the global batch.
        target_entropy: H_target.
        kind: What alpha is of it.
    """
    slope = base.exp() if kind == "exp" else torch.sigmoid(base)
    return slope * (entropy - target_entropy)
