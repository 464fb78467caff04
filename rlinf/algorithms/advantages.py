"""Advantages of a window of steps, on time-major tensors.

All functions take keyword arguments on `[n, B]` tensors: n steps (or tokens) of B envs (or
sequences). `dones[t]` says that an episode ends after step t, `terminations[t]` that it ended in a
terminal state; a done that is no termination is a truncation. They return raw advantages and
returns, `[n, B]` each (or None), zero at masked steps. `rlinf.algorithms.utils` brings chunked
`[T, B, C]` and token `[B, L]` layouts into this form and back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlinf.algorithms.groups import Groups
from rlinf.algorithms.kl import kl_penalty
from rlinf.algorithms.masks import episode_scores, last_valid, until_first_done
from rlinf.algorithms.registry import register_advantage

AllReduce = Callable[[Tensor], "Tensor | None"]
"""Sums a tensor over ranks: returns the sum, or None when it sums in place."""


@register_advantage("gae")
@torch.no_grad()
def compute_gae_advantages_and_returns(
    *,
    rewards: Tensor,
    values: Tensor | None = None,
    dones: Tensor | None = None,
    terminations: Tensor | None = None,
    bootstrap_values: Tensor | None = None,
    loss_mask: Tensor | None = None,
    durations: Tensor | None = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    bootstrap_type: str = "standard",
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016).

    δ_t = r_t + γ^k V'_t − V_t,  A_t = δ_t + (γλ)^k (1 − done_t) A_{t+1},  R_t = A_t + V_t, where
    k, the duration of step t, is 1 unless `durations` says otherwise, and V'_t, the value of the
    state that follows, is V_{t+1} inside an episode, V(final_obs) where it was truncated, and 0
    where it terminated. Masked steps are no steps: V' and A pass over them to the next valid one,
    so that text a tool wrote between two tokens costs no discount.

    Without values the result is the discounted return to go (V = 0, λ = 1).

    Args:
        rewards: `[n, B]`.
        values: V_0 … V_n, `[n + 1, B]`; the last row follows the last step.
        dones: `[n, B]`; None when no episode ends.
        terminations: `[n, B]`; None when every done is a termination.
        bootstrap_values: V(final_obs), `[n, B]`, read only where episodes were truncated.
        loss_mask: `[n, B]`, steps that the policy decided; None is all.
        durations: k, `[n, B]`; None is 1. A chunk of k actions is one step of duration k.
        gamma: γ.
        gae_lambda: λ.
        bootstrap_type: `standard`, or `always`: terminations add V(final_obs) too.

    Returns:
        Advantages and returns, `[n, B]`.

    Raises:
        ValueError: Shapes do not match, a termination is no done, or there are truncated steps
            and no values to bootstrap them with.
    """
    _check_shapes(
        rewards,
        dones=dones,
        terminations=terminations,
        bootstrap_values=bootstrap_values,
        loss_mask=loss_mask,
        durations=durations,
    )
    done = torch.zeros_like(rewards, dtype=torch.bool) if dones is None else dones.bool()
    mask = torch.ones_like(done) if loss_mask is None else loss_mask.bool()
    if values is None:
        gae_lambda = 1.0
        values = rewards.new_zeros((rewards.shape[0] + 1, rewards.shape[1]))
        end_values = torch.zeros_like(rewards)
    else:
        expected = (rewards.shape[0] + 1, rewards.shape[1])
        if tuple(values.shape) != expected:
            raise ValueError(
                f"values has the shape {tuple(values.shape)}; with rewards "
                f"{tuple(rewards.shape)} it must be {expected}: one row more, the value of the "
                "state after the last step"
            )
        end_values = _end_values(done, terminations, bootstrap_values, bootstrap_type, rewards)

    value, following = values[:-1], values[1:]
    if loss_mask is not None:
        known = torch.where(mask, value, torch.where(done, end_values, 0.0))
        passes = (~mask & ~done).to(rewards.dtype)
        last = torch.where(done[-1], 0.0, values[-1])
        following = torch.cat([reverse_scan(known, passes, last)[1:], last.unsqueeze(0)])
    following = torch.where(done, end_values, following)

    discount = torch.full_like(rewards, gamma)
    fade = torch.full_like(rewards, gamma * gae_lambda)
    if durations is not None:
        discount, fade = discount**durations, fade**durations
    delta = torch.where(mask, rewards + discount * following - value, 0.0)
    decay = torch.where(mask, fade, 1.0).masked_fill(done, 0.0)
    carried = reverse_scan(delta, decay, torch.zeros_like(rewards[0]))
    advantages = torch.where(mask, carried, 0.0)
    return advantages, torch.where(mask, carried + value, 0.0)


@register_advantage("grpo", normalize=False)
def compute_grpo_advantages(
    *,
    rewards: Tensor,
    group_size: int,
    group_ids: Tensor | None = None,
    dones: Tensor | None = None,
    loss_mask: Tensor | None = None,
    group_baseline: str = "mean",
    group_scale: str = "std",
) -> tuple[Tensor, None]:
    """Group-relative advantages (Shao et al. 2024).

    A = (s − b) / c, the same at all steps of an episode, where s is the return of the first episode
    in the window. The baseline b is the mean of the group, the episode itself included, or with
    `leave_one_out` the mean of the others (RLOO, Ahmadian et al. 2024), which makes s − b greater
    by G / (G − 1). The scale c is the unbiased deviation of the group plus 1e-6, or with `none` it
    is 1 (Dr. GRPO, Liu et al. 2025). A group whose scores are equal says nothing, nor does one with
    a single member: zero. Steps after the first episode have no score: zero.

    Args:
        rewards: `[n, B]`.
        group_size: G, at least 2.
        group_ids: Groups of any size: equal numbers are one group, int64 `[B]`; None is groups of
            `group_size` neighbours.
        dones: `[n, B]`; None when the window is one episode.
        loss_mask: `[n, B]`, steps that the policy decided; None is all.
        group_baseline: `mean` or `leave_one_out`.
        group_scale: `std` or `none`.

    Returns:
        Advantages `[n, B]`, and None.

    Raises:
        ValueError: B does not divide into groups, a group has one member, or a name is unknown.
    """
    _check_shapes(rewards, dones=dones, loss_mask=loss_mask)
    if group_size < 2:
        raise ValueError(
            f"grpo compares the members of a group: group_size is {group_size}, at least 2 needed"
        )
    if group_baseline not in ("mean", "leave_one_out"):
        raise ValueError(f"group_baseline is '{group_baseline}'; allowed: mean, leave_one_out")
    if group_scale not in ("std", "none"):
        raise ValueError(f"group_scale is '{group_scale}'; allowed: std, none")
    scores = episode_scores(rewards, dones)
    groups = _groups(scores, group_size, group_ids)
    relative = scores - groups.to_members(groups.mean(scores))
    if group_baseline == "leave_one_out":
        relative = relative * groups.to_members(groups.sizes / (groups.sizes - 1).clamp(min=1))
    if group_scale == "std":
        relative = relative / (groups.to_members(groups.std(scores)) + 1e-6)
    advantages = torch.where(groups.to_members(groups.unequal(scores)), relative, 0.0)
    return torch.where(_valid(rewards, dones, loss_mask), advantages, 0.0), None


@register_advantage("reinpp")
def compute_reinpp_advantages(
    *,
    rewards: Tensor,
    dones: Tensor | None = None,
    loss_mask: Tensor | None = None,
    group_size: int = 1,
    group_ids: Tensor | None = None,
    use_reinpp_baseline: bool = False,
    reinpp_kl_beta: float = 0.0,
    kl_penalty_type: str = "k1",
    logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (Hu 2025), to be normalised over the global batch.

    R_t = Σ_{u ≥ t} (1[u is the last valid step] · (s − b) − β KL_u) over valid steps, A_t = R_t.
    s is the return of the first episode in the window, b the mean of its group or 0. Undiscounted.

    Args:
        rewards: `[n, B]`.
        dones: `[n, B]`; None when the window is one episode.
        loss_mask: `[n, B]`, steps that the policy decided; None is all.
        group_size: Members of a group.
        group_ids: Groups of any size, as for `grpo`.
        use_reinpp_baseline: Whether b is the group's mean.
        reinpp_kl_beta: β.
        kl_penalty_type: See `rlinf.algorithms.kl.kl_penalty`.
        logprobs: Log-probabilities of the policy that acted, `[n, B]`; for β > 0.
        ref_logprobs: Those of the reference policy, `[n, B]`; for β > 0.

    Returns:
        Advantages and returns, `[n, B]`, equal.

    Raises:
        ValueError: Shapes do not match, or β > 0 and log-probabilities are missing.
    """
    _check_shapes(
        rewards, dones=dones, loss_mask=loss_mask, logprobs=logprobs, ref_logprobs=ref_logprobs
    )
    scores = episode_scores(rewards, dones)
    if use_reinpp_baseline:
        groups = _groups(scores, group_size, group_ids)
        scores = scores - groups.to_members(groups.mean(scores))
    valid = _valid(rewards, dones, loss_mask)
    credit = torch.where(last_valid(valid), scores, 0.0)
    if reinpp_kl_beta > 0:
        if logprobs is None or ref_logprobs is None:
            raise ValueError("reinpp_kl_beta > 0 needs logprobs and ref_logprobs")
        penalty = reinpp_kl_beta * kl_penalty(logprobs.detach(), ref_logprobs, kl_penalty_type)
        credit = credit - torch.where(valid, penalty, 0.0)
    returns = torch.where(valid, credit.flip(0).cumsum(0).flip(0), 0.0)
    return returns, returns.clone()


@register_advantage("raw")
def compute_raw_advantages(
    *, rewards: Tensor, dones: Tensor | None = None, loss_mask: Tensor | None = None
) -> tuple[Tensor, None]:
    """Return the return of the first episode in the window, at each of its valid steps.

    Args:
        rewards: `[n, B]`.
        dones: `[n, B]`; None when the window is one episode.
        loss_mask: `[n, B]`, steps that the policy decided; None is all.

    Returns:
        Advantages `[n, B]`, and None.
    """
    _check_shapes(rewards, dones=dones, loss_mask=loss_mask)
    scores = episode_scores(rewards, dones)
    return torch.where(_valid(rewards, dones, loss_mask), scores, 0.0), None


def normalize_advantages(
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    all_reduce: AllReduce | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """Shift and scales advantages by mean and deviation of the global batch.

    Â = (A − mean) / (std + ε) over the valid entries of all ranks, std unbiased, in float64.

    Args:
        advantages: Of any shape, those of this rank.
        loss_mask: Valid entries, broadcast to the shape of the advantages; None is all.
        all_reduce: Sums the float64 tensor (sum, sum of squares, count) over ranks; None when
            there is one.
        eps: ε.

    Returns:
        Of the shape and type of `advantages`, zero at masked entries.
    """
    exact = advantages.double()
    mask = None if loss_mask is None else loss_mask.bool().expand_as(advantages)
    valid = exact if mask is None else exact[mask]
    count = valid.new_tensor(float(valid.numel()))
    statistics = torch.stack([valid.sum(), valid.square().sum(), count])
    if all_reduce is not None:
        reduced = all_reduce(statistics)
        statistics = statistics if reduced is None else reduced
    total, squares, count = statistics.unbind()
    mean = total / count.clamp(min=1)
    variance = (squares - total * mean).clamp(min=0) / (count - 1).clamp(min=1)
    normalized = (exact - mean) / (variance.sqrt() + eps)
    if mask is not None:
        normalized = torch.where(mask, normalized, 0.0)
    return normalized.to(advantages.dtype)


def reverse_scan(inputs: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    """Solve y_t = x_t + c_t y_{t+1} from the end, with y_n = `last`.

    Args:
        inputs: x, `[n, B]`.
        decay: c, `[n, B]`.
        last: y_n, `[B]`.

    Returns:
        y_0 … y_{n-1}, `[n, B]`.
    """
    result = torch.empty_like(inputs)
    for x, c, y in zip(
        reversed(inputs.unbind()), reversed(decay.unbind()), reversed(result.unbind()), strict=True
    ):
        last = torch.addcmul(x, c, last, out=y)
    return result


def _end_values(
    done: Tensor,
    terminations: Tensor | None,
    bootstrap_values: Tensor | None,
    bootstrap_type: str,
    rewards: Tensor,
) -> Tensor:
    """Return `[n, B]`, the value after the last step of an episode; any number elsewhere."""
    if bootstrap_type not in ("standard", "always"):
        raise ValueError(f"bootstrap_type is '{bootstrap_type}'; allowed: standard, always")
    terminated = done if terminations is None else terminations.bool()
    if bool((terminated & ~done).any()):
        raise ValueError("terminations has steps that dones has not; a termination is a done")
    truncated = done if bootstrap_type == "always" else done & ~terminated
    if bootstrap_values is None:
        if bool(truncated.any()):
            raise ValueError(
                f"{int(truncated.sum())} steps end an episode whose return goes on; "
                "bootstrap_values must hold the value of their final observations"
            )
        return torch.zeros_like(rewards)
    return torch.where(truncated, bootstrap_values.to(rewards.dtype), 0.0)


def _groups(scores: Tensor, group_size: int, group_ids: Tensor | None) -> Groups:
    if group_ids is None:
        return Groups.of_size(len(scores), group_size, scores.device)
    if group_ids.shape != scores.shape:
        raise ValueError(
            f"group_ids has the shape {tuple(group_ids.shape)}; it must be {tuple(scores.shape)}, "
            "one number per episode"
        )
    return Groups(group_ids)


def _valid(rewards: Tensor, dones: Tensor | None, loss_mask: Tensor | None) -> Tensor:
    """Return `[n, B]`: steps of the first episode that the policy decided."""
    valid = torch.ones_like(rewards, dtype=torch.bool)
    if dones is not None:
        valid &= until_first_done(dones)
    if loss_mask is not None:
        valid &= loss_mask.bool()
    return valid


def _check_shapes(rewards: Tensor, **others: Tensor | None) -> None:
    if rewards.ndim != 2:
        raise ValueError(f"rewards must be [n, B], time first; it is {tuple(rewards.shape)}")
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != rewards.shape:
            raise ValueError(
                f"{name} has the shape {tuple(tensor.shape)}; it must be that of rewards, "
                f"{tuple(rewards.shape)}"
            )
