"""Surrogates of the policy gradient: PPO, GSPO and CISPO, per entry, before aggregation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlinf.algorithms.sequences import sequence_mean
from rlinf.config.suggest import listed

POLICY_LOSSES = ("ppo", "gspo", "cispo")
_CLIP_RANGES = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}


class Surrogate(NamedTuple):
    """What a surrogate says of each entry.

    Attributes:
        term: The loss, with gradient.
        ratio: The probability ratio that is clipped.
        clipped: Whether clipping changes the loss, bool.
    """

    term: Tensor
    ratio: Tensor
    clipped: Tensor


def clip_range(
    policy_loss: str, ratio_clip_eps: float, low: float | None, high: float | None
) -> tuple[float, float]:
    """Return ε_low and ε_high: those given, or the default of the surrogate.

    Args:
        policy_loss: `ppo` (default ratio_clip_eps on both sides), `gspo` (3e-4 and 4e-4, as in its
            paper) or `cispo` (1 and 4: the ratio is at most 5 and has no lower bound).
        ratio_clip_eps: See there.
        low: ε_low; None is the default.
        high: ε_high; None is the default.
    """
    defaults = _CLIP_RANGES.get(policy_loss, (ratio_clip_eps, ratio_clip_eps))
    return defaults[0] if low is None else low, defaults[1] if high is None else high


def surrogate(
    policy_loss: str,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip: tuple[float, float],
    log_ratio_bounds: tuple[float | None, float | None] = (None, None),
    mask: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> Surrogate:
    """Compute the loss of each entry.

    With ρ = π / π_old and sg the stop-gradient:

    - `ppo` (Schulman et al. 2017): l = max(−A ρ, −A clamp(ρ, 1 − ε_low, 1 + ε_high)).
    - `gspo` (Zheng et al. 2025): the same with the ratio of the sequence y,
      s = exp(mean_{t ∈ y} log ρ_t), in the place of ρ. Each token has the value of s and the
      gradient of its own log-probability, s_t = sg(s) π_t / sg(π_t) (GSPO-token): where the
      advantages of a sequence are equal, their sum has the gradient of the sequence's objective.
    - `cispo` (MiniMax 2025): l = −sg(clamp(ρ, 1 − ε_low, 1 + ε_high)) A log π. Every token has a
      gradient; clipping bounds its weight only.

    Args:
        policy_loss: `ppo`, `gspo` or `cispo`.
        logprobs: log π, with gradient, `[n, ...]`, or `[R]` tokens end to end; 0 where masked.
        old_logprobs: log π_old, same shape; 0 where masked.
        advantages: A, broadcast to that shape.
        clip: ε_low and ε_high.
        log_ratio_bounds: Least and greatest log-ratio; None is no bound.
        mask: Valid entries, broadcast to that shape; None is all.
        sequence_ids: For `gspo` on tokens end to end, see `rlinf.algorithms.sequences`.

    Raises:
        ValueError: Unknown surrogate, or `gspo` cannot tell sequences apart.
    """
    if policy_loss not in POLICY_LOSSES:
        raise ValueError(f"policy_loss is '{policy_loss}'; allowed: {listed(POLICY_LOSSES)}")
    log_ratio = logprobs - old_logprobs
    if policy_loss == "gspo":
        mean = sequence_mean(log_ratio.detach(), mask, sequence_ids)
        log_ratio = mean + logprobs - logprobs.detach()
    if log_ratio_bounds != (None, None):
        log_ratio = log_ratio.clamp(*log_ratio_bounds)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - clip[0], 1 + clip[1])
    if policy_loss == "cispo":
        return Surrogate(-bounded.detach() * advantages * logprobs, ratio, bounded != ratio)
    unclipped, clipped = -advantages * ratio, -advantages * bounded
    return Surrogate(torch.maximum(unclipped, clipped), ratio, clipped > unclipped)
