"""What samples of all kinds share: why there is none, and numbers for people."""

from __future__ import annotations


class NoSample(ValueError):
    """There is no sample to show; says why."""


def rounded(number: float) -> str:
    """Return a number with as many digits as people want to see."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"
