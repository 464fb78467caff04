"""How sure one can be of a rate or a mean: 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_Z = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


class Interval(NamedTuple):
    """An estimate and where the truth lies with 95 % confidence.

    Attributes:
        value: The estimate.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float


def wilson(rate: float, count: int) -> Interval:
    """Return the interval of Wilson (1927) for a rate of successes.

        center = (p + z^2 / 2n) / (1 + z^2 / n)
        half = z sqrt(p (1 - p) / n + z^2 / 4n^2) / (1 + z^2 / n)

    Unlike the plain normal interval it stays within 0 and 1 and is of use at 0 and 1 themselves.

    Args:
        rate: p, the share of successes.
        count: n, independent trials; nothing is known without any.
    """
    if count < 1:
        return Interval(math.nan, 0.0, 1.0)
    square = _Z * _Z / count
    center = (rate + square / 2) / (1 + square)
    spread = rate * (1 - rate) / count + square / (4 * count)
    half = _Z * math.sqrt(spread) / (1 + square)
    # Rounding must not push the end of an interval past the rate that it belongs to.
    return Interval(rate, min(rate, max(0.0, center - half)), max(rate, min(1.0, center + half)))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean and its interval by Student's t distribution.

    Args:
        values: Independent ones; of a single one the interval is without bounds.
    """
    count = len(values)
    if count == 0:
        return Interval(math.nan, -math.inf, math.inf)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile(count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half)


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, to a few parts in a thousand.

    Exact for one and two degrees of freedom; beyond, the expansion of Cornish and Fisher in one
    over the degrees of freedom (Abramowitz and Stegun 26.7.5).

    Args:
        freedom: Degrees of freedom, at least 1.
    """
    if freedom == 1:
        return math.tan(0.475 * math.pi)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
