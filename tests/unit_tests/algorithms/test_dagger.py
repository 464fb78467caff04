"""How likely the expert acts, rollout by rollout."""

import pytest

from rlinf.algorithms.dagger import mixture_beta


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("exponential", [0.8, 0.4, 0.2, 0.15, 0.15]),
        ("linear", [0.8, 0.3, 0.15, 0.15, 0.15]),
        ("constant", [0.8] * 5),
    ],
)
def test_it_falls_to_its_least(schedule, expected):
    found = [mixture_beta(k, 0.8, schedule, 0.5, 0.15) for k in range(5)]
    assert found == pytest.approx(expected)


def test_without_decay_the_first_rollout_is_the_experts():
    assert [mixture_beta(k, 1.0, "exponential", 0.0, 0.0) for k in range(3)] == [1.0, 0.0, 0.0]


def test_another_schedule_is_refused():
    with pytest.raises(ValueError, match="beta_schedule must be"):
        mixture_beta(0, 1.0, "cosine", 0.5, 0.0)
