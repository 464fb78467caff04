"""Brings chunked and token layouts into the forms that advantages and losses take, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.masks import last_valid, until_done_in_chunk
from rlinf.algorithms.registry import advantage_registry, calculate_adv_and_returns

LEVELS = ("token_level", "action_level", "chunk_level")


def reduce_level(tensor: Tensor, level: str, action_mask: Tensor | None = None) -> Tensor:
    """Sum log-probabilities or entropies over the unit that `logprob_type` names.

    Args:
        tensor: `[..., C, A]`, per action of a chunk and dimension (or token) of an action.
        level: `token_level` keeps `[..., C, A]`, `action_level` gives `[..., C]`, `chunk_level`
            gives `[...]`.
        action_mask: Bool `[..., C]`; actions outside, which were never carried out, add nothing.

    Returns:
        The sums.

    Raises:
        ValueError: Unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"level is '{level}'; allowed: {', '.join(LEVELS)}")
    if action_mask is not None:
        tensor = torch.where(action_mask.bool().unsqueeze(-1), tensor, 0.0)
    if level == "token_level":
        return tensor
    return tensor.sum(-1) if level == "action_level" else tensor.sum((-2, -1))


def flatten_chunks(tensor: Tensor) -> Tensor:
    """Turn `[T, B, C]` into time-major steps `[T * C, B]`."""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1])


def unflatten_chunks(steps: Tensor, actions: int) -> Tensor:
    """Turn time-major steps `[T * C, B]` into `[T, B, C]`, with C = `actions`."""
    return steps.reshape(-1, actions, steps.shape[1]).transpose(1, 2).contiguous()


def compute_embodied_advantages(
    *,
    adv_type: str,
    rewards: Tensor,
    dones: Tensor,
    reward_type: str = "chunk_level",
    discount_per: str = "step",
    terminations: Tensor | None = None,
    values: Tensor | None = None,
    bootstrap_values: Tensor | None = None,
    loss_mask: Tensor | None = None,
    logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Compute advantages of T chunks of C actions in B envs.

    With `action_level` an action is a step, U = C. With `chunk_level` a chunk is one step, U = 1,
    of the k actions in it that count: its reward is Σ_i γ^i r_i over them, its done and termination
    are those of the last, its duration is k. An advantage that does not name `durations` gets the
    plain sum.

    With `discount_per` `chunk`, γ and λ count chunks: rewards of a chunk are summed as they are,
    and what follows a chunk is discounted once.

    Args:
        adv_type: A registered advantage.
        rewards: `[T, B, C]`.
        dones: `[T, B, C]`, true where an episode ends after the action.
        reward_type: `action_level` or `chunk_level`.
        discount_per: `step` or `chunk`.
        terminations: `[T, B, C]`; None when every done is a termination.
        values: V of the rollout, `[T + 1, B, U]`; with U = C, of the state before each action.
        bootstrap_values: V(final_obs), `[T, B, 1]` or `[T, B, C]`; the first is that of the state
            in which the episode ended.
        loss_mask: Bool `[T, B, C]`, actions that were carried out and count; None is all but those
            that follow the end of an episode in their chunk, which never count.
        logprobs: Log-probabilities of the policy that acted, `[T, B, C, A]`, if the advantage
            penalises divergence.
        ref_logprobs: Those of the reference policy, `[T, B, C, A]`.
        **settings: Further arguments of the advantage.

    Returns:
        Advantages `[T, B, U]`, returns `[T, B, U]` or None, and the steps that count, `[T, B, U]`.

    Raises:
        ValueError: Shapes or settings do not match.
    """
    if reward_type not in ("action_level", "chunk_level"):
        raise ValueError(f"reward_type is '{reward_type}'; allowed: action_level, chunk_level")
    if discount_per not in ("step", "chunk"):
        raise ValueError(f"discount_per is '{discount_per}'; allowed: step, chunk")
    if rewards.ndim != 3 or dones.shape != rewards.shape:
        raise ValueError(
            f"rewards and dones must be [T, B, C]; they are {tuple(rewards.shape)} and "
            f"{tuple(dones.shape)}"
        )
    chunks, envs, actions = rewards.shape
    unit = actions if reward_type == "action_level" else 1
    counts = until_done_in_chunk(dones)
    if loss_mask is not None:
        counts &= loss_mask.bool()
    dones = dones.bool() & counts
    terminations = None if terminations is None else terminations.bool() & counts
    if bootstrap_values is not None:
        bootstrap_values = bootstrap_values[..., :1].expand(-1, -1, unit)
    per_step, durations = discount_per == "step", None
    if unit == 1 and actions > 1:
        if per_step and "durations" in advantage_registry.arguments(adv_type):
            durations = counts.sum(-1, keepdim=True)
            gamma = torch.full_like(rewards, settings.get("gamma", 1.0))
            rewards = rewards * gamma ** (counts.cumsum(-1) - 1).clamp(min=0)
        rewards = torch.where(counts, rewards, 0.0).sum(-1, keepdim=True)
        dones = dones.any(-1, keepdim=True)
        terminations = None if terminations is None else terminations.any(-1, keepdim=True)
    elif unit > 1 and not per_step:
        durations = last_valid(counts.movedim(-1, 0)).movedim(0, -1).long()
    if values is not None:
        if tuple(values.shape) != (chunks + 1, envs, unit):
            raise ValueError(
                f"values has the shape {tuple(values.shape)}; with reward_type {reward_type} and "
                f"{chunks} chunks of {actions} actions in {envs} envs it must be "
                f"{(chunks + 1, envs, unit)}"
            )
        values = flatten_chunks(values)[: chunks * unit + 1]
    mask = counts if unit == actions else counts.any(-1, keepdim=True)
    arguments = {
        "rewards": rewards,
        "dones": dones,
        "terminations": terminations,
        "bootstrap_values": bootstrap_values,
        "loss_mask": mask,
        "durations": durations,
        "logprobs": _per_step(logprobs, counts, unit),
        "ref_logprobs": _per_step(ref_logprobs, counts, unit),
    }
    steps = {
        name: None if tensor is None else flatten_chunks(tensor)
        for name, tensor in arguments.items()
    }
    advantages, returns = calculate_adv_and_returns(
        adv_type=adv_type, values=values, **steps, **settings
    )
    returns = None if returns is None else unflatten_chunks(returns, unit)
    return unflatten_chunks(advantages, unit), returns, mask


def compute_token_advantages(
    *,
    adv_type: str,
    rewards: Tensor,
    response_mask: Tensor,
    values: Tensor | None = None,
    logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute advantages of B sequences of L tokens.

    Args:
        adv_type: A registered advantage.
        rewards: `[B]`, of whole responses: each comes with the last valid token, where the
            episode ends; or `[B, L]`, of tokens.
        response_mask: `[B, L]`, true at tokens that the policy wrote.
        values: V of the state before each token, `[B, L]`.
        logprobs: Log-probabilities of the policy that sampled, `[B, L]`.
        ref_logprobs: Those of the reference policy, `[B, L]`.
        **settings: Further arguments of the advantage.

    Returns:
        Advantages `[B, L]`, and returns `[B, L]` or None.

    Raises:
        ValueError: Shapes do not match.
    """
    mask = response_mask.bool().T
    ends = last_valid(mask)
    if rewards.ndim == 1:
        # A response without a valid token still counts in its group.
        place = ends.clone()
        place[-1] |= ~mask.any(0)
        rewards = torch.where(place, rewards, 0.0)
    else:
        rewards = rewards.T
    if values is not None:
        values = torch.cat([values.T, torch.zeros_like(values[:, :1]).T])
    advantages, returns = calculate_adv_and_returns(
        adv_type=adv_type,
        rewards=rewards,
        dones=ends,
        loss_mask=mask,
        values=values,
        logprobs=None if logprobs is None else logprobs.T,
        ref_logprobs=None if ref_logprobs is None else ref_logprobs.T,
        **settings,
    )
    returns = None if returns is None else returns.T.contiguous()
    return advantages.T.contiguous(), returns


def _per_step(tensor: Tensor | None, counts: Tensor, unit: int) -> Tensor | None:
    """Sum `[T, B, C, A]` over the actions that count, to one number per step, `[T, B, unit]`."""
    if tensor is None:
        return None
    if unit > 1:
        return reduce_level(tensor, "action_level", counts)
    return reduce_level(tensor, "chunk_level", counts).unsqueeze(-1)
