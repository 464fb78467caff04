"""Which steps count: up to the end of an episode, in which groups, and how many of them."""

from __future__ import annotations

import torch
from torch import Tensor


def until_first_done(dones: Tensor) -> Tensor:
    """Marks the steps of the first episode in the window, its last step included.

    Args:
        dones: `[n, ...]`, true where an episode ends after the step.

    Returns:
        Bool `[n, ...]`.
    """
    ended = dones.bool().cumsum(0)
    return (ended - dones.long()) == 0


def last_valid(mask: Tensor) -> Tensor:
    """Marks the last true entry of each column, wherever the valid entries lie.

    Args:
        mask: Bool `[n, B]`.

    Returns:
        Bool `[n, B]`, true once per column, never in an empty one.
    """
    mask = mask.bool()
    left = mask.flip(0).cumsum(0).flip(0)
    return mask & (left == 1)


def until_done_in_chunk(dones: Tensor) -> Tensor:
    """Marks the actions of each chunk that come before or with the first end of an episode in it.

    The others were chosen for an episode that is over, and are not carried out.

    Args:
        dones: `[T, B, C]`, true where an episode ends after the action.

    Returns:
        Bool `[T, B, C]`.
    """
    return until_first_done(dones.movedim(-1, 0)).movedim(0, -1)


def episode_lengths(mask: Tensor, dones: Tensor) -> Tensor:
    """Counts, for every step, the valid steps of the episode it belongs to.

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
    """Sums the rewards of the first episode in the window, undiscounted.

    Args:
        rewards: `[n, B]`.
        dones: `[n, B]`, true where an episode ends after the step; None when the window is one.

    Returns:
        `[B]`.
    """
    if dones is None:
        return rewards.sum(0)
    return torch.where(until_first_done(dones), rewards, 0.0).sum(0)


def in_groups(scores: Tensor, group_size: int) -> Tensor:
    """Views `[B]` as `[B / group_size, group_size]`: groups lie side by side.

    Raises:
        ValueError: B is no multiple of the group size.
    """
    if group_size < 1 or scores.shape[0] % group_size:
        raise ValueError(
            f"{scores.shape[0]} episodes do not divide into groups of group_size {group_size}"
        )
    return scores.reshape(-1, group_size)


def groups_unequal(scores: Tensor, group_size: int) -> Tensor:
    """Marks the groups whose members have different scores: only these say what is better.

    Rounding makes equal scores differ in their last digit; such a difference is none.

    Args:
        scores: `[B]`, one per episode, groups side by side; or `[B / group_size, group_size]`.
        group_size: Members of a group.

    Returns:
        Bool `[B / group_size]`.
    """
    groups = in_groups(scores.reshape(-1), group_size)
    spread = groups.amax(1) - groups.amin(1)
    return spread > 1e-6 * groups.abs().amax(1)


def groups_within(
    scores: Tensor, *, group_size: int, lower: float | None = None, upper: float | None = None
) -> Tensor:
    """Marks the members of groups whose mean score lies in `[lower, upper]`.

    Args:
        scores: `[B]`, one per episode, groups side by side.
        group_size: Members of a group.
        lower: Least mean that is kept; None is no bound.
        upper: Greatest mean that is kept; None is no bound.

    Returns:
        Bool `[B]`.
    """
    means = in_groups(scores, group_size).mean(1)
    keep = torch.ones_like(means, dtype=torch.bool)
    if lower is not None:
        keep &= means >= lower
    if upper is not None:
        keep &= means <= upper
    return keep.repeat_interleave(group_size)


def filter_groups(
    loss_mask: Tensor,
    *,
    rewards: Tensor,
    dones: Tensor | None = None,
    group_size: int,
    rewards_lower_bound: float | None = None,
    rewards_upper_bound: float | None = None,
) -> Tensor:
    """Takes the groups whose mean score is outside the bounds out of the loss.

    Args:
        loss_mask: Bool `[n, B]`.
        rewards: `[n, B]`.
        dones: `[n, B]`, true where an episode ends after the step.
        group_size: Envs, side by side, that share a start.
        rewards_lower_bound: Least mean score that is kept.
        rewards_upper_bound: Greatest mean score that is kept.

    Returns:
        Bool `[n, B]`.
    """
    keep = groups_within(
        episode_scores(rewards, dones),
        group_size=group_size,
        lower=rewards_lower_bound,
        upper=rewards_upper_bound,
    )
    return loss_mask.bool() & keep
