"""Implicit Q-learning (Kostrikov et al., 2021): losses of value function and actor.

    L_V = E[|tau - 1(u < 0)| u^2],    u = agg_k Q'_k(s, a) - V(s)
    L_Q = sum_k 1/2 E[(Q_k(s, a) - r - gamma V(s'))^2],    V(s') = 0 where s' is terminal
    L_pi = -E[w log pi(a|s)],    w = min(exp(beta (agg_k Q'_k(s, a) - V(s))), w_max)

All actions are those of the data: no policy is asked what it would do. That of the critics is
`rlinf.algorithms.off_policy.losses.critic_loss`. Each loss is a sum over the samples at hand,
divided by the samples of the global batch, so that gradients of micro-batches and ranks add up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def expectile_loss(values: Tensor, target: Tensor, expectile: float, total: int) -> Tensor:
    """Return the loss that makes V an expectile of Q over the actions of the data.

    Args:
        values: V(s), `[n]`.
        target: Q of the data's actions, `[n]`, without gradients.
        expectile: tau; 0.5 is the mean, towards 1 the greatest.
        total: Samples of the global batch.
    """
    error = target - values
    weight = torch.where(error < 0, 1.0 - expectile, expectile)
    return (weight * error * error).sum() / total


def advantage_weights(advantages: Tensor, temperature: float, most: float) -> Tensor:
    """Return `min(exp(beta A), w_max)`, `[n]`.

    Args:
        advantages: A, `[n]`.
        temperature: beta; 0 weighs all alike, which is behaviour cloning.
        most: w_max.
    """
    # Exponentials that would be infinite are the greatest weight, not NaN.
    return torch.exp(temperature * advantages).clamp(max=most)


def weighted_regression_loss(
    logprobs: Tensor, valid: Tensor, weights: Tensor, total: int
) -> Tensor:
    """Return `-E[w log pi(a|s)]`.

    Args:
        logprobs: Of each number of the data's actions, `[n, C*A]`.
        valid: Which actions of a chunk are of the episode, bool `[n, C]`.
        weights: w, `[n]`, without gradients.
        total: Samples of the global batch.
    """
    shaped = logprobs.unflatten(1, (valid.shape[1], -1)).masked_fill(~valid[..., None], 0.0)
    return -(weights * shaped.sum((1, 2))).sum() / total
