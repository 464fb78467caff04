"""Confidence intervals of rates."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""


def wilson_interval(successes: float, count: int, z: float = Z_95) -> tuple[float, float]:
    """The Wilson score interval of a success rate; unlike the usual one, good for 0 % and 100 %.

    (p̂ + z²/2n ± z·√(p̂(1−p̂)/n + z²/4n²)) / (1 + z²/n)

    Args:
        successes: how many of them succeeded.
        count: number of trials, at least 1.
        z: quantile of the normal distribution.

    Raises:
        ValueError: there are no trials, or more successes than trials.
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count} trials have no interval")
    rate = successes / count
    middle = rate + z * z / (2 * count)
    half = z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
