"""Which steps count: up to the end of an episode, and how many of them."""

from __future__ import annotations

import torch
from torch import Tensor


def until_first_done(dones: Tensor) -> Tensor:
    """Mark the steps of the first episode in the window, its last step included.

    Args:
        dones: `[n, ...]`, true where an episode ends after the step.

    Returns:
        Bool `[n, ...]`.
    """
    ended = dones.bool().cumsum(0)
    return (ended - dones.long()) == 0


def last_valid(mask: Tensor) -> Tensor:
    """Mark the last true entry of each column, wherever the valid entries lie.

    Args:
        mask: Bool `[n, B]`.

    Returns:
        Bool `[n, B]`, true once per column, never in an empty one.
    """
    mask = mask.bool()
    left = mask.flip(0).cumsum(0).flip(0)
    return mask & (left == 1)


def until_done_in_chunk(dones: Tensor) -> Tensor:
    """Mark the actions of each chunk that come before or with the first end of an episode in it.

    The others were chosen for an episode that is over, and are not carried out.

    Args:
        dones: `[T, B, C]`, true where an episode ends after the action.

    Returns:
        Bool `[T, B, C]`.
    """
    return until_first_done(dones.movedim(-1, 0)).movedim(0, -1)


def episode_lengths(mask: Tensor, dones: Tensor) -> Tensor:
    """Count, for every step, the valid steps of the episode it belongs to.

    This is the `loss_mask_sum` with which `seq-mean-token-mean` weighs all episodes alike.

    Args:
        mask: Bool `[n, B]`.
        dones: `[n, B]`, true where an episode ends after the step.

    Returns:
        Int64 `[n, B]`.
    """
    ended = dones.long()
    episode = ended.cumsum(0) - ended
    counts = torch.zeros((mask.shape[0] + 1, *mask.shape[1:]), dtype=torch.long, device=mask.device)
    counts.scatter_add_(0, episode, mask.long())
    return counts.gather(0, episode)


def episode_scores(rewards: Tensor, dones: Tensor | None = None) -> Tensor:
    """Sum the rewards of the first episode in the window, undiscounted.

    Args:
        rewards: `[n, B]`.
        dones: `[n, B]`, true where an episode ends after the step; None when the window is one.

    Returns:
        `[B]`.
    """
    if dones is None:
        return rewards.sum(0)
    return torch.where(until_first_done(dones), rewards, 0.0).sum(0)
