"""Groups of any size, against loops over their members."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.groups import Groups
from rlinf.algorithms.registry import calculate_adv_and_returns

D = torch.float64


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.floats(-5, 5, width=16), st.booleans()), max_size=12)
)
def test_what_groups_say_is_what_their_members_say(members):
    ids = torch.tensor([m[0] for m in members], dtype=torch.int64)
    scores = torch.tensor([m[1] for m in members], dtype=D)
    flags = torch.tensor([m[2] for m in members], dtype=torch.bool)
    groups = Groups(ids)
    names = sorted(set(ids.tolist()))
    places = [[i for i, m in enumerate(members) if m[0] == name] for name in names]
    assert [groups.members([n]).tolist() for n in range(len(names))] == places
    assert groups.members(range(len(names))[::-1]).tolist() == sum(places[::-1], [])
    assert groups.labels.tolist() == names
    assert groups.sizes.tolist() == [len(own) for own in places]
    own_scores = [[float(scores[i]) for i in own] for own in places]
    means = [statistics.fmean(own) for own in own_scores]
    assert groups.mean(scores).tolist() == pytest.approx(means)
    stds = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in own_scores]
    assert groups.std(scores).tolist() == pytest.approx(stds, abs=1e-9)
    assert groups.unequal(scores).tolist() == [
        max(own) - min(own) > 1e-6 * max(map(abs, own)) for own in own_scores
    ]
    assert groups.all(flags).tolist() == [all(flags[i] for i in own) for own in places]
    kept = groups.within(scores, -1.0, 2.0).tolist()
    by_name = dict(zip(names, means, strict=True))
    assert kept == [-1.0 <= float(by_name[int(i)]) <= 2.0 for i in ids]


def test_groups_are_kept_by_their_mean_score():
    scores = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    groups = Groups.of_size(6, 2)
    assert groups.within(scores, 0.1, 0.9).int().tolist() == [0, 0, 1, 1, 0, 0]
    assert groups.within(scores, None, None).all()
    with pytest.raises(ValueError, match="6 episodes do not divide into groups of group_size 4"):
        Groups.of_size(6, 4)


def test_groups_say_something_only_if_their_scores_differ():
    scores = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 3.0, 3.0 + 1e-7])
    assert Groups.of_size(8, 2).unequal(scores).tolist() == [False, True, False, False]


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_advantages_in_groups_of_different_sizes(baseline, scale):
    rewards = torch.tensor([[1.0, 5.0, 0.0, 2.0, 3.0, 4.0, 4.0]], dtype=D)
    ids = torch.tensor([8, 2, 8, 5, 8, 2, 2])
    advantages, _ = calculate_adv_and_returns(
        adv_type="grpo",
        rewards=rewards,
        group_size=3,
        group_ids=ids,
        group_baseline=baseline,
        group_scale=scale,
    )
    for place, own in enumerate(ids.tolist()):
        group = [float(rewards[0, i]) for i in range(7) if ids[i] == own]
        if len(group) == 1:
            assert advantages[0, place] == 0.0, "one response alone says nothing"
            continue
        score = float(rewards[0, place])
        others = list(group)
        others.remove(score)
        expected = score - statistics.fmean(group if baseline == "mean" else others)
        if scale == "std":
            expected /= statistics.stdev(group) + 1e-6
        assert float(advantages[0, place]) == pytest.approx(expected)


def test_the_baseline_of_reinpp_is_that_of_each_group():
    rewards = torch.tensor([[1.0, 5.0, 0.0, 2.0, 3.0, 4.0]], dtype=D)
    ids = torch.tensor([1, 0, 1, 2, 1, 0])
    common = {"adv_type": "reinpp", "rewards": rewards, "group_size": 2, "group_ids": ids}
    advantages, _ = calculate_adv_and_returns(use_reinpp_baseline=True, **common)
    assert advantages[0].tolist() == pytest.approx([-1 / 3, 0.5, -4 / 3, 0.0, 5 / 3, -0.5])
    with pytest.raises(ValueError, match=r"group_ids has the shape \(5,\); it must be \(6,\)"):
        calculate_adv_and_returns(**{**common, "group_ids": ids[1:], "use_reinpp_baseline": True})
