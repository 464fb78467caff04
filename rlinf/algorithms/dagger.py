"""Who acts while DAgger (Ross et al., 2011) collects: with probability beta the expert."""

from __future__ import annotations

from typing import Literal


def mixture_beta(
    rollout: int,
    initial: float,
    schedule: Literal["exponential", "linear", "constant"],
    decay: float,
    least: float,
) -> float:
    """Return the probability that the expert acts in a rollout.

        exponential: max(beta_min, beta_0 decay^k)
        linear:      max(beta_min, beta_0 - decay k)
        constant:    beta_0

    Args:
        rollout: k, its number from 0.
        initial: beta_0.
        schedule: Which of these.
        decay: See there.
        least: beta_min.
    """
    if schedule == "exponential":
        return max(least, initial * decay**rollout)
    if schedule == "linear":
        return max(least, initial - decay * rollout)
    if schedule == "constant":
        return initial
    raise ValueError(
        f"beta_schedule must be 'exponential', 'linear' or 'constant', not '{schedule}'"
    )
