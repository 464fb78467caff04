"""The interval of a rate: all rates that a test at 5 % would not reject."""

from __future__ import annotations

import pytest

from rlinf.utils.intervals import Z_95, wilson_interval


def edge(successes: int, count: int, low: float, high: float) -> float:
    """Bisects for the rate p at which |p̂ − p| = z·√(p(1−p)/n)."""
    rate = successes / count

    def rejected(p: float) -> bool:
        return (rate - p) ** 2 > Z_95**2 * p * (1 - p) / count

    inside = rate
    outside = low if low < rate else high
    for _ in range(200):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
    return inside


@pytest.mark.parametrize(("successes", "count"), [(16, 20), (1, 3), (50, 100), (999, 1000)])
def test_it_is_what_the_score_test_does_not_reject(successes, count):
    low, high = wilson_interval(successes, count)
    assert low == pytest.approx(edge(successes, count, 0.0, 0.0), abs=1e-9)
    assert high == pytest.approx(edge(successes, count, 1.0, 1.0), abs=1e-9)


def test_all_and_none():
    assert wilson_interval(0, 100) == pytest.approx((0.0, 0.0370), abs=1e-4)
    assert wilson_interval(100, 100) == pytest.approx((0.9630, 1.0), abs=1e-4)


@pytest.mark.parametrize(("successes", "count"), [(0, 0), (3, 2), (-1, 5)])
def test_what_has_no_rate(successes, count):
    with pytest.raises(ValueError, match="no interval"):
        wilson_interval(successes, count)
