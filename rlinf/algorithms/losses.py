"""Policy losses: what one micro-batch adds to the loss of the global batch.

All functions take keyword arguments. Tensors have the batch first: `[n]`, `[n, C]` or `[n, C, A]`
for n chunks of C actions of A dimensions, `[B, L]` for B sequences of L tokens. Missing trailing
dimensions are ones; masked entries may hold anything.

`norm` counts the global batch (`LossNorm.count`); then the losses of all micro-batches of all
ranks add up to the loss of the batch. (Where an engine averages gradients over ranks, multiply by
their number.) Without it the micro-batch is taken for the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.aggregation import Aggregator, LossNorm, align
from rlinf.algorithms.critic import compute_critic_loss
from rlinf.algorithms.importance import interpolate_proximal
from rlinf.algorithms.kl import GRADIENT_FREE, kl_penalty
from rlinf.algorithms.metrics import Metric, MetricMax
from rlinf.algorithms.registry import register_policy_loss
from rlinf.algorithms.surrogates import clip_range, surrogate

Result = tuple[Tensor, dict[str, Metric]]


@register_policy_loss("actor")
def compute_ppo_actor_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    loss_mask_sum: Tensor | None = None,
    norm: LossNorm | None = None,
    loss_agg_func: str = "token-mean",
    loss_length: float | None = None,
    ratio_clip_eps: float = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float | None = None,
    clip_log_ratio_min: float | None = None,
    clip_log_ratio_max: float | None = None,
    policy_loss: str = "ppo",
    sequence_ids: Tensor | None = None,
    importance_weights: Tensor | None = None,
    entropy: Tensor | None = None,
    entropy_bonus: float = 0.0,
    ref_logprobs: Tensor | None = None,
    kl_beta: float = 0.0,
    kl_penalty_type: str = "low_var_kl",
    kl_in: str = "loss",
) -> Result:
    """Return the clipped surrogate of PPO, GRPO, DAPO and REINFORCE++, or that of GSPO or CISPO.

    With l as `rlinf.algorithms.surrogates.surrogate` says; for PPO, with ρ = π / π_old,
    l = max(−A ρ, −A clamp(ρ, 1 − ε_low, 1 + ε_high)). With dual clip (Ye et al. 2020), c > 1,
    l = min(l, c |A|), which matters where A < 0. Then
    L = agg(w l) − entropy_bonus · agg(H) + β · agg(KL(π ‖ π_ref)).

    Args:
        logprobs: log π, with gradient.
        old_logprobs: log π_old of the policy that sampled.
        advantages: A.
        loss_mask: Entries that count; None is all.
        loss_mask_sum: Valid entries of the episode of each entry, where rows are not sequences.
        norm: Counts of the global batch.
        loss_agg_func: See `rlinf.algorithms.aggregation.Aggregator`.
        loss_length: See there.
        ratio_clip_eps: ε_low and ε_high of `ppo` where these are None.
        clip_ratio_low: ε_low; None is the default, see `rlinf.algorithms.surrogates.clip_range`.
        clip_ratio_high: ε_high; likewise.
        clip_ratio_c: c; None is no dual clip. Not for `cispo`.
        clip_log_ratio_min: Least log-ratio; None is no bound.
        clip_log_ratio_max: Greatest log-ratio; None is no bound.
        policy_loss: `ppo`, `gspo` or `cispo`.
        sequence_ids: Number of the sequence of each token, `[R]`, for `gspo`; None when rows are
            sequences.
        importance_weights: w ≥ 0, without gradient; None is 1.
        entropy: H, with gradient.
        entropy_bonus: Weight of the entropy.
        ref_logprobs: log π_ref.
        kl_beta: β.
        kl_penalty_type: See `rlinf.algorithms.kl.kl_penalty`; in the loss not `k1`, whose
            gradient is zero on average.
        kl_in: `loss`, or `reward` when the advantages have the KL already.

    Returns:
        The share of the loss, and metrics.

    Raises:
        ValueError: Shapes do not match, log-probabilities of too low precision, a tensor that a
            weight needs is missing, or settings that do not go together.
    """
    _check_precision(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    tensors = (logprobs, old_logprobs, advantages, importance_weights, entropy, ref_logprobs)
    aggregator = _aggregator(
        tensors, advantages, loss_mask, loss_mask_sum, loss_agg_func, norm, loss_length
    )
    logprobs = aggregator.clean(logprobs, "logprobs")
    advantages = aggregator.clean(advantages, "advantages")
    if importance_weights is not None:
        weights = aggregator.clean(importance_weights.detach(), "importance_weights")
        advantages = advantages * weights  # l is homogeneous: w l(A) = l(w A)

    old_logprobs = aggregator.clean(old_logprobs, "old_logprobs")
    of_policy = surrogate(
        policy_loss,
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        clip=clip_range(policy_loss, ratio_clip_eps, clip_ratio_low, clip_ratio_high),
        log_ratio_bounds=(clip_log_ratio_min, clip_log_ratio_max),
        mask=aggregator.mask_of(logprobs),
        sequence_ids=sequence_ids,
    )
    term, ratio = of_policy.term, of_policy.ratio
    metrics: dict[str, Metric] = {}
    if clip_ratio_c is not None:
        if policy_loss == "cispo":
            raise ValueError(
                f"clip_ratio_c is {clip_ratio_c}, but cispo bounds the ratio itself; set it to null"
            )
        bound = clip_ratio_c * advantages.abs()
        metrics["actor/dual_clip_fraction"] = aggregator.mean_metric(_share(term > bound))
        term = torch.minimum(term, bound)
    loss = aggregator.loss(term)
    metrics["actor/policy_loss"] = aggregator.loss_metric(term)
    with torch.no_grad():
        metrics["actor/clip_fraction"] = aggregator.mean_metric(_share(of_policy.clipped))
        drift = logprobs - old_logprobs
        # k3 at samples of the old policy: KL(π_old ‖ π).
        metrics["actor/approx_kl"] = aggregator.mean_metric(drift.expm1() - drift)
        metrics["actor/ratio"] = aggregator.mean_metric(ratio)
        metrics["actor/ratio_max"] = MetricMax.of(ratio, aggregator.mask_of(ratio))

    if entropy is not None:
        entropy = aggregator.clean(entropy, "entropy")
        metrics["actor/entropy"] = aggregator.loss_metric(entropy)
    if entropy_bonus > 0:
        if entropy is None:
            raise ValueError("entropy_bonus > 0 needs the entropy of the policy")
        loss = loss - entropy_bonus * aggregator.loss(entropy)
    if kl_beta > 0 and ref_logprobs is None and kl_in == "loss":
        raise ValueError("kl_beta > 0 needs ref_logprobs, those of the reference policy")
    if kl_beta > 0 and kl_in == "loss" and kl_penalty_type in GRADIENT_FREE:
        raise ValueError(
            f"kl_penalty_type '{kl_penalty_type}' has no gradient on average and, as a loss, would "
            "hold nothing back; use low_var_kl or k2, or kl_in: reward"
        )
    if ref_logprobs is not None:
        reference = aggregator.clean(ref_logprobs, "ref_logprobs")
        divergence = kl_penalty(logprobs, reference, kl_penalty_type)
        metrics["actor/kl_ref"] = aggregator.loss_metric(divergence)
        if kl_beta > 0 and kl_in == "loss":
            loss = loss + kl_beta * aggregator.loss(divergence)
    return loss, metrics


compute_grpo_actor_loss_fn = compute_ppo_actor_loss
"""GRPO's loss is PPO's: the difference lies in the advantages and in the aggregation."""


@register_policy_loss("decoupled_actor", forwards=(compute_ppo_actor_loss,))
def compute_decoupled_actor_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    proximal_logprobs: Tensor | None = None,
    versions: Tensor | None = None,
    current_version: int | None = None,
    behave_weight_threshold: float | None = None,
    **actor: Any,
) -> Result:
    """Decoupled PPO (Hilton et al. 2022): clips around a proximal policy, not the one that sampled.

    L = agg(w l(π / π_prox)), w = π_prox / π_b where w ≤ threshold and 0 elsewhere. Dropped entries
    stay in the count of the mean, which is known before the forward pass.

    Args:
        logprobs: log π, with gradient.
        old_logprobs: log π_b of the policy that sampled.
        advantages: A.
        loss_mask: Entries that count; None is all.
        proximal_logprobs: log π_prox; None interpolates, see
            `rlinf.algorithms.importance.interpolate_proximal`.
        versions: Versions of the weights that sampled, `[n]` or finer; needed to interpolate.
        current_version: Version that this update makes; needed to interpolate.
        behave_weight_threshold: Greatest w; None keeps all.
        **actor: As in `compute_ppo_actor_loss`.

    Returns:
        The share of the loss, and metrics.

    Raises:
        ValueError: As there, or no proximal policy and nothing to interpolate it from.
    """
    tensors = (logprobs, old_logprobs, advantages, proximal_logprobs, versions)
    aggregator = _aggregator(tensors, advantages, loss_mask)
    behave = aggregator.clean(old_logprobs, "old_logprobs")
    if proximal_logprobs is not None:
        proximal = aggregator.clean(proximal_logprobs.detach(), "proximal_logprobs")
    elif versions is None or current_version is None:
        raise ValueError(
            "a decoupled loss needs proximal_logprobs, or versions and current_version"
        )
    else:
        proximal = interpolate_proximal(
            aggregator.clean(logprobs, "logprobs"),
            behave,
            align(versions, aggregator.ndim),
            current_version,
        )
    log_weight = proximal - behave
    weight = log_weight.exp()
    metrics: dict[str, Metric] = {}
    if behave_weight_threshold is not None:
        dropped = weight > behave_weight_threshold
        metrics["actor/behave_clip_fraction"] = aggregator.mean_metric(_share(dropped))
        weight = torch.where(dropped, 0.0, weight)
    metrics["actor/behave_weight"] = aggregator.mean_metric(weight)
    metrics["actor/behave_approx_kl"] = aggregator.mean_metric(log_weight.expm1() - log_weight)
    if versions is not None and current_version is not None:
        fresh = current_version - 1
        age = fresh - torch.where(versions < 0, fresh, versions).to(weight.dtype)
        age = aggregator.clean(align(age, aggregator.ndim).expand_as(weight), "versions")
        metrics["actor/policy_age"] = aggregator.mean_metric(age)
    loss, of_actor = compute_ppo_actor_loss(
        logprobs=logprobs,
        old_logprobs=proximal,
        advantages=advantages,
        loss_mask=loss_mask,
        importance_weights=weight,
        **actor,
    )
    return loss, of_actor | metrics


@register_policy_loss("actor_critic", forwards=(compute_ppo_actor_loss,))
def compute_ppo_actor_critic_loss(
    *,
    values: Tensor,
    returns: Tensor | None,
    old_values: Tensor | None = None,
    value_clip: float | None = 0.2,
    huber_delta: float = 10.0,
    value_loss_coef: float = 1.0,
    critic_warmup: bool = False,
    **actor: Any,
) -> Result:
    """Return the loss of `actor` plus value_loss_coef times that of the value function.

    Args:
        values: V, with gradient, `[n]` or as the advantages.
        returns: R.
        old_values: V of the rollout.
        value_clip: See `rlinf.algorithms.critic.compute_critic_loss`.
        huber_delta: See there.
        value_loss_coef: Weight of the value loss.
        critic_warmup: Train the value function only.
        **actor: As in `compute_ppo_actor_loss`.

    Returns:
        The share of the loss, and metrics.

    Raises:
        ValueError: As in the functions named, or the advantage has no returns.
    """
    critic = (values, returns, old_values, value_clip, huber_delta)
    return _with_critic(compute_ppo_actor_loss, actor, critic, value_loss_coef, critic_warmup)


@register_policy_loss(
    "decoupled_actor_critic", forwards=(compute_decoupled_actor_loss, compute_ppo_actor_loss)
)
def compute_decoupled_actor_critic_loss(
    *,
    values: Tensor,
    returns: Tensor | None,
    old_values: Tensor | None = None,
    value_clip: float | None = 0.2,
    huber_delta: float = 10.0,
    value_loss_coef: float = 1.0,
    critic_warmup: bool = False,
    **actor: Any,
) -> Result:
    """As `compute_ppo_actor_critic_loss`, with the actor of `compute_decoupled_actor_loss`."""
    critic = (values, returns, old_values, value_clip, huber_delta)
    return _with_critic(compute_decoupled_actor_loss, actor, critic, value_loss_coef, critic_warmup)


def _with_critic(
    actor_loss: Any,
    actor: dict[str, Any],
    critic: tuple[Tensor, Tensor | None, Tensor | None, float | None, float],
    value_loss_coef: float,
    critic_warmup: bool,
) -> Result:
    values, returns, old_values, value_clip, huber_delta = critic
    if returns is None:
        raise ValueError("a value loss needs returns, which this adv_type does not give; use gae")
    aggregator = _aggregator(
        (values, returns, old_values, actor["advantages"]),
        actor["advantages"],
        actor.get("loss_mask"),
        actor.get("loss_mask_sum"),
        actor.get("loss_agg_func", "token-mean"),
        actor.get("norm"),
        actor.get("loss_length"),
    )
    loss, metrics = compute_critic_loss(
        aggregator=aggregator,
        values=values,
        returns=returns,
        old_values=old_values,
        value_clip=value_clip,
        huber_delta=huber_delta,
    )
    loss = value_loss_coef * loss
    if critic_warmup:
        return loss, metrics
    policy_loss, of_actor = actor_loss(**actor)
    return policy_loss + loss, of_actor | metrics


def _aggregator(
    tensors: tuple[Tensor | None, ...],
    advantages: Tensor,
    loss_mask: Tensor | None,
    loss_mask_sum: Tensor | None = None,
    loss_agg_func: str = "token-mean",
    norm: LossNorm | None = None,
    loss_length: float | None = None,
) -> Aggregator:
    return Aggregator(
        advantages,
        ndim=max(tensor.ndim for tensor in (*tensors, loss_mask) if tensor is not None),
        loss_mask=loss_mask,
        loss_mask_sum=loss_mask_sum,
        loss_agg_func=loss_agg_func,
        norm=norm,
        loss_length=loss_length,
    )


def _share(chosen: Tensor) -> Tensor:
    return chosen.to(torch.float32)


def _check_precision(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, too coarse for the ratio "
                "of two probabilities; compute it in float32"
            )
