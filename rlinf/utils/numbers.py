"""Numbers for people: as many digits as one reads, and no more."""

from __future__ import annotations

import math

_DIGITS = 4


def number(value: float, digits: int = _DIGITS) -> str:
    """Return a number with thousands separators and few significant digits.

    Whole numbers keep all of theirs: `48,000`, `1,234`, `401.3`, `0.0945`, `1.2e-05`.

    Args:
        value: the number.
        digits: significant digits of those that are not whole.
    """
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    before = math.floor(math.log10(abs(value))) + 1
    if before >= digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(share: float, decimals: int = 1) -> str:
    """Return a share of 1 in percent: `98.0%`.

    Args:
        share: from 0 to 1.
        decimals: digits after the point.
    """
    return f"{share:.{decimals}%}"


def interval(value: str, low: str, high: str) -> str:
    """Return a number with the ends of its interval: `98.0% (93.0% – 99.4%)`."""
    return f"{value} ({low} – {high})"
