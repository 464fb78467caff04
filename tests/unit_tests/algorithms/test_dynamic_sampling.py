"""Groups without a signal are replaced, within a budget; who is first has no influence."""

import random
from dataclasses import dataclass

import pytest

from rlinf.algorithms.dynamic_sampling import DynamicSampler, carries_signal


@dataclass
class Group:
    index: int
    signal: bool

    turn_rewards = ()

    @property
    def scores(self):
        return [0.0, float(self.signal)]


def groups(*signals, first=0):
    return [Group(first + i, bool(s)) for i, s in enumerate(signals)]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([1, 1, 1], False), ([0, 1, 1], True), ([0.1 + 0.2, 0.3], False), ([5], False), ([], False)],
)
def test_a_signal_is_a_difference(scores, expected):
    assert carries_signal(scores) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], False),
        ([{}, {1: 0.5}], True),
        ([{1: 0.5}, {1: 0.5}], False),
        ([{1: 0.5}, {2: 0.5}], False),
        ([{0: 0.1, 1: 0.2}, {0: 0.3}], False),
    ],
)
def test_rewards_of_turns_are_a_signal(given, expected):
    """By what episodes were given altogether, as the actor counts groups with a signal."""
    assert carries_signal([1.0, 1.0], given) is expected
    assert carries_signal([1.0, 0.0], given), (
        "scores that differ are one, whatever turns were given"
    )


def test_a_step_that_is_informative_at_once_draws_once():
    s = DynamicSampler(4, max_batches=3)
    s.begin()
    assert s.wanted() == 4
    assert s.wanted() == 0, "what was drawn has not come yet"
    s.offer(groups(1, 1, 1, 1))
    assert s.wanted() == 0
    assert [g.index for g in s.take()] == [0, 1, 2, 3]
    assert s.metrics() == {"groups_drawn": 4, "groups_with_signal": 4, "groups_dropped": 0}


def test_more_is_drawn_at_the_rate_that_was_seen():
    s = DynamicSampler(4, max_batches=5)
    s.begin()
    s.wanted()
    s.offer(groups(1, 0, 0, 0))
    assert s.wanted() == 12, "three are missing, and one in four had a signal"
    s.offer(groups(*[1] * 5, *[0] * 7, first=4))
    assert s.wanted() == 0
    assert len(s.take()) == 4
    assert s.metrics() == {"groups_drawn": 16, "groups_with_signal": 6, "groups_dropped": 2}


def test_the_first_prompts_are_taken_whoever_is_complete_first():
    drawn = groups(1, 0, 1, 1, 0, 1, 1, 1)
    for seed in range(20):
        arrived = random.Random(seed).sample(drawn, len(drawn))
        s = DynamicSampler(4, max_batches=2)
        s.begin(drawn=len(drawn))
        for group in arrived:
            s.offer([group])
        assert [g.index for g in s.take()] == [0, 2, 3, 5]


def test_the_budget_ends_a_step_that_is_not_full():
    s = DynamicSampler(4, max_batches=2)
    s.begin()
    drawn = 0
    while count := s.wanted():
        drawn += count
        s.offer(groups(1, *[0] * (count - 1)))
    assert drawn == 8
    assert len(s.take()) == 2


def test_a_draw_without_any_signal_asks_for_another_batch():
    s = DynamicSampler(4, max_batches=3)
    s.begin()
    s.wanted()
    s.offer(groups(0, 0, 0, 0))
    assert s.wanted() == 4


def test_a_step_knows_nothing_of_the_one_before():
    s = DynamicSampler(2, max_batches=3)
    s.begin()
    s.wanted()
    s.offer(groups(1, 1, 1))
    s.take()
    s.begin(drawn=2)
    assert s.wanted() == 0, "what was drawn has not come yet"
    s.offer(groups(0, 0, first=3))
    assert s.with_signal == 0 and s.wanted() == 2


@pytest.mark.parametrize("bad", [{"target": 0}, {"max_batches": 0}])
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match="both must be at least 1"):
        DynamicSampler(**({"target": 4} | bad))
