"""What Q-values are to be: rewards, and the value of what follows.

For a transition over k env steps with rewards r_0 .. r_(k-1),

    y = sum_i gamma^i r_i + gamma^k V(s'),    0 instead of V(s') where s' is terminal

The replay buffer gives the sum (`rewards`) and gamma^k, 0 at terminations (`bootstrap`).
"""

from __future__ import annotations

from torch import Tensor


def soft_value(values: Tensor, logprobs: Tensor, alpha: Tensor | None) -> Tensor:
    """Return `V(s') = Q(s', a') - alpha log pi(a'|s')` for sampled actions.

    Args:
        values: Q of sampled actions, `[n]`.
        logprobs: Of the same actions, `[n]`.
        alpha: Weight of entropy; None counts none.
    """
    return values if alpha is None else values - alpha * logprobs


def soft_value_of_choices(values: Tensor, log_probs: Tensor, alpha: Tensor | None) -> Tensor:
    """Return `V(s') = sum_d sum_a pi_d(a) (Q_d(s', a) - alpha log pi_d(a))`, without sampling.

    Args:
        values: Q of all choices, `[n, D, N]`.
        log_probs: Of all choices, `[n, D, N]`.
        alpha: Weight of entropy; None counts none.

    Returns:
        `[n]`.
    """
    gain = values if alpha is None else values - alpha * log_probs
    return (log_probs.exp() * gain).sum((-2, -1))


def smooth_actions(
    actions: Tensor, noise: Tensor, most: float, low: Tensor, high: Tensor
) -> Tensor:
    """Return actions with clipped noise added, clipped to their range (TD3).

    Args:
        actions: In the units of the env, `[n, C, A]`.
        noise: In parts of half the range, of the same shape.
        most: Greatest absolute noise.
        low: Smallest action, `[A]`.
        high: Largest action, `[A]`.
    """
    scale = (high - low) / 2
    return (actions + noise.clamp(-most, most) * scale).clamp(low, high)


def bellman_target(rewards: Tensor, bootstrap: Tensor, next_values: Tensor) -> Tensor:
    """Return `y`, `[n]`.

    Args:
        rewards: Discounted sums, `[n]`.
        bootstrap: Discounts of the next observations, 0 where these are terminal, `[n]`.
        next_values: V of the next observations, `[n]`.
    """
    return rewards + bootstrap * next_values
