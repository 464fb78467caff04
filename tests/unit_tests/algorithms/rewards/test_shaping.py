"""Scale, bounds and the length penalty, against the formula as the paper writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.algorithms.rewards.shaping import overlong_penalty, scaled


def slow_penalty(length, limit, cache):
    """Eq. 13 of DAPO, case by case."""
    if length <= limit - cache:
        return 0.0
    if length <= limit:
        return ((limit - cache) - length) / cache
    return -1.0


@given(st.integers(1, 200), st.data(), st.integers(0, 300), st.floats(0, 4))
def test_the_penalty_is_that_of_the_paper(limit, data, length, weight):
    cache = data.draw(st.integers(1, limit))
    found = overlong_penalty(length, limit, cache, weight)
    assert found == pytest.approx(weight * slow_penalty(length, limit, cache))
    assert -weight <= found <= 0
    assert overlong_penalty(length + 1, limit, cache, weight) <= found


def test_no_buffer_is_no_penalty_and_a_buffer_must_fit():
    assert overlong_penalty(10**6, 100, 0, 5.0) == 0.0
    with pytest.raises(ValueError, match="101 tokens.*at most.*100: set algorithm.overlong_buffer"):
        overlong_penalty(1, 100, 101)


@pytest.mark.parametrize(
    ("score", "bounds", "reward"),
    [(1.0, (None, None), 5.0), (1.0, (-1, 1), 1.0), (-1.0, (-2, None), -2.0), (0.1, (-1, 1), 0.5)],
)
def test_scale_comes_before_the_bounds(score, bounds, reward):
    assert scaled(score, 5.0, *bounds) == reward
