"""Groups without a signal are replaced, within a budget; left-overs come first next time."""

from dataclasses import dataclass

import pytest

from rlinf.algorithms.dynamic_sampling import DynamicSampler, carries_signal


@dataclass
class Group:
    number: int
    signal: bool
    version: int = 0


def sampler(target=4, **kwargs):
    return DynamicSampler(
        target,
        rewards=lambda g: [0.0, float(g.signal)],
        version=lambda g: g.version,
        **kwargs,
    )


def groups(*signals, version=0):
    return [Group(i, bool(s), version) for i, s in enumerate(signals)]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 1, 1], False), ([0, 1, 1], True), ([0.1 + 0.2, 0.3], False), ([5], False), ([], False)],
)
def test_a_signal_is_a_difference(rewards, expected):
    assert carries_signal(rewards) is expected


def test_a_step_that_is_informative_at_once_draws_once():
    s = sampler(max_batches=3)
    s.begin(0)
    assert s.wanted() == 4
    assert s.wanted() == 0, "what was drawn has not come yet"
    s.offer(groups(1, 1, 1, 1))
    assert s.wanted() == 0
    assert [g.number for g in s.take()] == [0, 1, 2, 3]
    assert s.metrics()["groups_drawn"] == 4 and s.carried == []


def test_more_is_drawn_at_the_rate_that_was_seen():
    s = sampler(max_batches=5)
    s.begin(0)
    s.wanted()
    s.offer(groups(1, 0, 0, 0))
    assert s.wanted() == 12, "three are missing, and one in four had a signal"
    s.offer(groups(*[1] * 5, *[0] * 7))
    assert s.wanted() == 0
    assert len(s.take()) == 4 and len(s.carried) == 2
    assert s.metrics() == {
        "groups_drawn": 16,
        "groups_with_signal": 6,
        "groups_carried": 2,
        "groups_expired": 0,
    }


def test_the_budget_ends_a_step_that_is_not_full():
    s = sampler(max_batches=2)
    s.begin(0)
    drawn = 0
    while count := s.wanted():
        drawn += count
        s.offer(groups(1, *[0] * (count - 1)))
    assert drawn == 8
    assert len(s.take()) == 2


def test_a_draw_without_any_signal_asks_for_another_batch():
    s = sampler(max_batches=3)
    s.begin(0)
    s.wanted()
    s.offer(groups(0, 0, 0, 0))
    assert s.wanted() == 4


def test_left_over_groups_come_first_and_save_draws():
    s = sampler(max_batches=3, max_age=1)
    s.begin(0)
    s.wanted()
    s.offer(groups(1, 1, 0, 0))
    assert s.wanted() == 4
    s.offer([Group(9, True), *groups(1, 1, 1)])
    s.take()
    left = list(s.carried)
    assert len(left) == 2
    s.begin(1)
    assert s.wanted() == 2
    s.offer(groups(1, 1, version=1))
    assert s.take()[:2] == left


def test_groups_that_are_too_old_are_dropped():
    for age, expected in ((0, 4), (1, 3)):
        s = sampler(max_batches=2, max_age=age)
        s.begin(0)
        s.wanted()
        s.offer(groups(1, 1, 1, 1, 1))
        s.take()
        assert len(s.carried) == 1
        s.begin(1)
        assert s.wanted() == expected
        assert s.metrics()["groups_expired"] == (age == 0)


def test_samples_say_how_old_a_group_is_and_what_it_got():
    @dataclass
    class Sample:
        reward: float
        versions: list

    @dataclass
    class SampleGroup:
        samples: list

    s = DynamicSampler(1, max_age=1)
    s.begin(3)
    s.wanted()
    s.offer([SampleGroup([Sample(0.0, [3, 3]), Sample(1.0, [2, 3])]) for _ in range(2)])
    s.take()
    assert len(s.carried) == 1
    s.begin(4)
    assert s.metrics()["groups_expired"] == 1


@pytest.mark.parametrize("bad", [{"target": 0}, {"max_batches": 0}, {"max_age": -1}])
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match="must be at least 1"):
        sampler(**bad)


def test_prompts_that_were_drawn_ahead_count_as_drawn():
    s = sampler(target=2, max_batches=3, max_age=1)
    s.begin(0)
    assert s.wanted() == 2
    s.offer(groups(1, 1, 1))
    s.take()
    (carried,) = s.carried
    assert s.begin(1, drawn=2) == [carried]
    assert s.wanted() == 0, "what was drawn has not come yet"
    s.offer(groups(0, 0))
    assert s.wanted() == 2, "one is missing, and none of those had a signal"
