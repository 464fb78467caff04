"""DiffusionNFT (Zheng et al., 2025): reinforcement learning of a flow without likelihoods.

With the velocity `v_old` of the policy that acted and `v` of the one that is trained, there are two
policies, on either side of the old one:

    v+ = v_old + beta (v - v_old)        v- = v_old - beta (v - v_old)

A sampled action `a` with noise `z` at time `t` is at `x_t = t z + (1 - t) a`, and its velocity is
`z - a`. The errors of both policies are `E± = w(t) |x_t - t v± - a|^2 = w(t) t^2 |v± - (z - a)|^2`,
means over the numbers of an action. An action of optimality `r` from 0 (bad) to 1 (good) has the
loss

    mse:  (r E+ + (1 - r) E-) / beta
    dpo:  softplus(dpo_beta / 2 (2 r - 1) (E+ - E-))

so that good actions draw the velocity towards themselves and bad ones push it away.

What bad actions push away does not come back by itself: v_old has to be the mean of `z - a` for the
actions that are learned from, and good and bad have to balance. So `a` is what the env took, within
its range, and episodes that fail, which last longer, should not count for more than those that
succeed (`loss_agg_func: seq-mean-token-mean`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.algorithms.aggregation import Aggregator, LossNorm
from rlinf.algorithms.metrics import Metric

_SMALLEST_TIME = 1e-3
_SMALLEST_ERROR = 1e-5


def optimality_of(advantages: Tensor, clip_max: float) -> Tensor:
    """Return how good actions were, from 0 to 1: `1/2 + clip(A / clip_max, -1, 1) / 2`.

    Args:
        advantages: A, of any shape.
        clip_max: Advantage from which on an action counts as good without reserve.
    """
    return 0.5 + 0.5 * (advantages / clip_max).clamp(-1.0, 1.0)


def acting_share(tau: float | Sequence[float], updates: int) -> float:
    """Return how far the policy that acts goes towards the trained one after an update.

    Args:
        tau: The share; or `[a, b, m, n]`, which is a until update m, b from update n on, and
            `a + (b - a) (updates - m) / (n - m)` in between.
        updates: Made so far, this one included.
    """
    if isinstance(tau, (int, float)):
        return float(tau)
    first, last, begin, end = tau
    return first + (last - first) * min(max((updates - begin) / (end - begin), 0.0), 1.0)


def nft_loss(
    *,
    velocity: Tensor,
    old_velocity: Tensor,
    noise: Tensor,
    actions: Tensor,
    time: Tensor,
    optimality: Tensor,
    loss_mask: Tensor,
    beta: float,
    form: str = "mse",
    dpo_beta: float = 1.0,
    weight: str = "inv_t2",
    loss_mask_sum: Tensor | None = None,
    loss_agg_func: str = "token-mean",
    norm: LossNorm | None = None,
    loss_length: float | None = None,
) -> tuple[Tensor, dict[str, Metric]]:
    """Return this micro-batch's share of the loss, and metrics.

    Losses of valid actions are means over draws; n samples, K draws, C actions, A numbers each.

    Args:
        velocity: v, `[n, K, C, A]`, with gradients.
        old_velocity: v_old, the same shape.
        noise: z, the same shape.
        actions: a, in the units of the flow, `[n, C, A]`.
        time: t, `[n, K]`.
        optimality: r, `[n, C]` or `[n, 1]`.
        loss_mask: Which actions count, bool `[n, C]`.
        beta: How far the two policies are from the old one.
        form: `mse` or `dpo`.
        dpo_beta: Steepness of `dpo`.
        weight: w, see `time_weight`; `adaptive` divides by the mean absolute error of the action
            that each policy expects from a draw.
        loss_mask_sum: Valid actions of the episode of each action, `[n, C]`.
        loss_agg_func: See `rlinf.algorithms.aggregation.Aggregator`.
        norm: Counts of the global batch; None when this micro-batch is all of it.
        loss_length: See `rlinf.algorithms.aggregation.Aggregator`.
    """
    step, target = beta * (velocity - old_velocity), noise - actions[:, None]
    plus, minus = (
        _energy(policy - target, time, weight)
        for policy in (old_velocity + step, old_velocity - step)
    )
    r = optimality[:, None].expand_as(plus)
    if form == "dpo":
        losses = functional.softplus(0.5 * dpo_beta * (2.0 * r - 1.0) * (plus - minus))
    else:
        losses = (r * plus + (1.0 - r) * minus) / beta
    parts = Aggregator(
        loss_mask.to(losses.dtype),
        ndim=2,
        loss_mask=loss_mask,
        loss_mask_sum=loss_mask_sum,
        loss_agg_func=loss_agg_func,
        norm=norm,
        loss_length=loss_length,
    )
    moved = (velocity - old_velocity).detach().square().mean(-1)
    own = parts.clean(losses.mean(1), "loss")
    metrics: dict[str, Metric] = {"actor/loss": parts.loss_metric(own)}
    told = {"energy_plus": plus, "energy_minus": minus, "velocity_change": moved, "optimality": r}
    for name, term in told.items():
        metrics[f"actor/{name}"] = parts.mean_metric(parts.clean(term.mean(1), name))
    return parts.loss(own), metrics


def time_weight(time: Tensor, kind: str) -> Tensor:
    """Return w(t): 1 for `constant`, `t`, `1-t`, or `1 / t^2` for `inv_t2`.

    Args:
        time: t, of any shape.
        kind: Which.
    """
    if kind == "t":
        return time
    if kind == "1-t":
        return 1.0 - time
    if kind == "inv_t2":
        return time.clamp_min(_SMALLEST_TIME).square().reciprocal()
    return torch.ones_like(time)


def _energy(error: Tensor, time: Tensor, weight: str) -> Tensor:
    """Return E of each action, `[n, K, C]`, for errors of velocities `[n, K, C, A]`."""
    missed = time[:, :, None, None] * error
    if weight == "adaptive":
        typical = missed.detach().abs().mean((2, 3), keepdim=True).clamp_min(_SMALLEST_ERROR)
        return (missed.square() / typical).mean(-1)
    return time_weight(time, weight)[:, :, None] * missed.square().mean(-1)
