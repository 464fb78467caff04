"""Intervals against exact numbers, and against how often they hold the truth."""

from __future__ import annotations

import math
import random

import pytest

from rlinf.utils.intervals import mean_interval, student_quantile, wilson


def test_wilson_against_known_intervals():
    # Newcombe (1998), table I: method 3 (score, no continuity correction).
    for successes, count, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = wilson(successes / count, count)
        assert found.value == successes / count
        assert found.low == pytest.approx(low, abs=5e-5)
        assert found.high == pytest.approx(high, abs=5e-5)


def test_wilson_is_symmetric_and_stays_inside():
    for count in (1, 2, 7, 100, 10_000):
        assert wilson(0.0, count).low == 0.0 and wilson(1.0, count).high == 1.0
        for rate in (0.0, 0.3, 1.0):
            one, other = wilson(rate, count), wilson(1 - rate, count)
            assert one.low == pytest.approx(1 - other.high, abs=1e-12)
            assert 0 <= one.low <= rate <= one.high <= 1
    nothing = wilson(0.0, 0)
    assert math.isnan(nothing.value) and (nothing.low, nothing.high) == (0.0, 1.0)


def test_student_quantiles():
    known = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 10: 2.2281, 99: 1.9842}
    for freedom, expected in known.items():
        assert student_quantile(freedom) == pytest.approx(expected, rel=2e-3)


def test_means():
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert found.value == 3.0
    assert found.low == pytest.approx(3 - half, rel=1e-3)
    assert found.high == pytest.approx(3 + half, rel=1e-3)
    assert mean_interval([2.0]) == (2.0, -math.inf, math.inf)
    assert math.isnan(mean_interval([]).value)
    assert mean_interval([7.0] * 4) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(("rate", "count"), [(0.5, 20), (0.9, 50), (0.97, 100)])
def test_nineteen_of_twenty_intervals_hold_the_truth(rate, count):
    rng = random.Random(1)
    inside = 0
    for _ in range(2000):
        found = wilson(sum(rng.random() < rate for _ in range(count)) / count, count)
        inside += found.low <= rate <= found.high
    assert 0.92 < inside / 2000 < 0.985
