"""Advantages within groups, with each baseline and scale, against the sums they stand for."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.registry import calculate_adv_and_returns
from rlinf.algorithms.utils import compute_token_advantages

D = torch.float64
CHOICES = [(b, s) for b in ("mean", "leave_one_out") for s in ("std", "none")]


def slow(scores, size, baseline, scale):
    """One score after the other."""
    out = []
    for place, score in enumerate(scores):
        begin = place // size * size
        group = scores[begin : begin + size]
        others = group[: place - begin] + group[place - begin + 1 :]
        advantage = score - statistics.fmean(group if baseline == "mean" else others)
        if scale == "std":
            advantage /= statistics.stdev(group) + 1e-6
        out.append(0.0 if max(group) == min(group) else advantage)
    return out


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([2, 3, 6]))
@pytest.mark.parametrize(("baseline", "scale"), CHOICES)
def test_tokens_get_the_advantage_of_their_response(baseline, scale, seed, size):
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 3, (12,), generator=g).to(D)
    lengths = torch.randint(0, 6, (12,), generator=g)
    mask = torch.arange(5) < lengths.unsqueeze(1)
    advantages, returns = compute_token_advantages(
        adv_type="grpo",
        rewards=rewards,
        response_mask=mask,
        group_size=size,
        group_baseline=baseline,
        group_scale=scale,
    )
    expected = torch.tensor(slow(rewards.tolist(), size, baseline, scale), dtype=D)
    torch.testing.assert_close(advantages, expected.unsqueeze(1) * mask)
    assert returns is None


def test_leaving_one_out_is_the_mean_scaled():
    rewards = torch.rand(1, 8, dtype=D)
    common = {"adv_type": "grpo", "rewards": rewards, "group_size": 4, "group_scale": "none"}
    mean, _ = calculate_adv_and_returns(**common)
    others, _ = calculate_adv_and_returns(group_baseline="leave_one_out", **common)
    torch.testing.assert_close(others, mean * 4 / 3)


def test_without_a_scale_advantages_grow_with_the_rewards():
    rewards = torch.rand(1, 8, dtype=D)
    for scale, factor in (("none", 5.0), ("std", 1.0)):
        one, ten = (
            calculate_adv_and_returns(adv_type="grpo", rewards=r, group_size=4, group_scale=scale)[
                0
            ]
            for r in (rewards, 5 * rewards)
        )
        torch.testing.assert_close(ten, one * factor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("key", ["group_baseline", "group_scale"])
def test_unknown_names_are_told(key):
    with pytest.raises(ValueError, match=f"{key} is 'median'; allowed: "):
        calculate_adv_and_returns(
            adv_type="grpo", rewards=torch.rand(1, 4), group_size=2, **{key: "median"}
        )


def test_gae_over_response_tokens_is_the_textbook_sum():
    """A_t = Σ_k (γλ)^k δ_{t+k} over the tokens of one response, whose reward is at its last."""
    g = torch.Generator().manual_seed(0)
    lengths, gamma, lam = [4, 1, 6], 0.9, 0.8
    mask = torch.arange(6) < torch.tensor(lengths).unsqueeze(1)
    values = torch.randn(3, 6, generator=g, dtype=D)
    rewards = torch.randn(3, generator=g, dtype=D)
    advantages, returns = compute_token_advantages(
        adv_type="gae",
        rewards=rewards,
        response_mask=mask,
        values=values,
        gamma=gamma,
        gae_lambda=lam,
    )
    for row, length in enumerate(lengths):
        deltas = []
        for t in range(length):
            last = t == length - 1
            following = 0.0 if last else values[row, t + 1].item()
            reward = rewards[row].item() if last else 0.0
            deltas.append(reward + gamma * following - values[row, t].item())
        for t in range(length):
            expected = sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:]))
            assert advantages[row, t].item() == pytest.approx(expected)
            assert returns[row, t].item() == pytest.approx(expected + values[row, t].item())
    assert (advantages[~mask] == 0).all()
