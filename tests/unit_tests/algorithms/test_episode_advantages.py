"""grpo, reinpp, raw and the global normalisation against slow references."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages import normalize_advantages
from rlinf.algorithms.kl import kl_penalised_rewards, kl_penalty
from rlinf.algorithms.registry import calculate_adv_and_returns

D = torch.float64


def window(seed, n=7, envs=6):
    g = torch.Generator().manual_seed(seed)
    return {
        "rewards": torch.randn(n, envs, generator=g, dtype=D),
        "dones": torch.rand(n, envs, generator=g) < 0.2,
        "loss_mask": torch.rand(n, envs, generator=g) < 0.7,
    }


def first_episodes(batch):
    """The score of each env's first episode, and its valid steps, by walking."""
    scores, steps = [], []
    n, envs = batch["rewards"].shape
    for env in range(envs):
        score, valid = 0.0, []
        for t in range(n):
            score += batch["rewards"][t, env].item()
            if batch["loss_mask"][t, env]:
                valid.append(t)
            if batch["dones"][t, env]:
                break
        scores.append(score)
        steps.append(valid)
    return scores, steps


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), group=st.sampled_from([2, 3, 6]))
def test_grpo_matches_the_loop(seed, group):
    batch = window(seed)
    scores, steps = first_episodes(batch)
    expected = torch.zeros_like(batch["rewards"])
    for env, valid in enumerate(steps):
        members = scores[env // group * group : (env // group + 1) * group]
        spread = statistics.stdev(members)
        for t in valid:
            expected[t, env] = (scores[env] - statistics.fmean(members)) / (spread + 1e-6)
    advantages, returns = calculate_adv_and_returns(adv_type="grpo", group_size=group, **batch)
    torch.testing.assert_close(advantages, expected)
    assert returns is None


def test_grpo_is_zero_where_all_scores_are_equal():
    # The mean of these is off by a rounding, and so are two sums of the same rewards.
    rewards = torch.full((3, 6), 1000.1 / 3)
    rewards[0, 1], rewards[1, 1] = 0.0, 2000.2 / 3
    rewards[2, 5] += 5.0
    advantages, _ = calculate_adv_and_returns(adv_type="grpo", rewards=rewards, group_size=3)
    assert (advantages[:, :3] == 0).all() and (advantages[:, 3:] != 0).all()


@pytest.mark.parametrize(("size", "complaint"), [(1, "at least 2"), (4, "6 episodes do not")])
def test_grpo_needs_whole_groups(size, complaint):
    with pytest.raises(ValueError, match=complaint):
        calculate_adv_and_returns(adv_type="grpo", rewards=torch.ones(2, 6), group_size=size)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), baseline=st.booleans(), beta=st.sampled_from([0.0, 0.3]))
def test_reinpp_matches_the_loop(seed, baseline, beta):
    batch = window(seed)
    logprobs, reference = torch.randn(2, 7, 6, dtype=D).unbind()
    scores, steps = first_episodes(batch)
    if baseline:
        means = [statistics.fmean(scores[env // 3 * 3 : env // 3 * 3 + 3]) for env in range(6)]
        scores = [score - mean for score, mean in zip(scores, means, strict=True)]
    expected = torch.zeros(7, 6, dtype=D)
    for env, valid in enumerate(steps):
        total = scores[env]
        for t in reversed(valid):
            total -= beta * (logprobs[t, env] - reference[t, env]).item()
            expected[t, env] = total
    advantages, returns = calculate_adv_and_returns(
        adv_type="reinpp",
        group_size=3,
        use_reinpp_baseline=baseline,
        reinpp_kl_beta=beta,
        kl_penalty_type="k1",
        logprobs=logprobs,
        ref_logprobs=reference,
        **batch,
    )
    torch.testing.assert_close(advantages, expected)
    assert torch.equal(advantages, returns)


def test_reinpp_says_what_kl_needs():
    with pytest.raises(ValueError, match="needs logprobs and ref_logprobs"):
        calculate_adv_and_returns(adv_type="reinpp", rewards=torch.ones(1, 1), reinpp_kl_beta=0.1)


def test_raw_is_the_score_at_valid_steps():
    batch = window(4)
    scores, steps = first_episodes(batch)
    expected = torch.zeros(7, 6, dtype=D)
    for env, valid in enumerate(steps):
        expected[valid, env] = scores[env]
    advantages, _ = calculate_adv_and_returns(adv_type="raw", **batch)
    torch.testing.assert_close(advantages, expected)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 10))
def test_normalisation_is_that_of_all_ranks_together(seed, cut):
    g = torch.Generator().manual_seed(seed)
    advantages = torch.randn(10, 3, generator=g) * 5 + 100
    mask = torch.rand(10, 3, generator=g) < 0.6
    shards = [(advantages[:cut], mask[:cut]), (advantages[cut:], mask[cut:])]
    sent = []
    for shard in shards:
        normalize_advantages(*shard, all_reduce=lambda x: sent.append(x.clone()))
    total = sent[0] + sent[1]
    assert total.dtype == D and total.shape == (3,)
    parts = [normalize_advantages(*shard, all_reduce=lambda x: total) for shard in shards]
    whole = normalize_advantages(advantages, mask)
    torch.testing.assert_close(torch.cat(parts), whole)
    valid = [x for x, m in zip(advantages.flatten().tolist(), mask.flatten(), strict=True) if m]
    if len(valid) > 1:
        mean, spread = statistics.fmean(valid), statistics.stdev(valid)
        expected = torch.tensor([(x - mean) / (spread + 1e-5) for x in valid])
        torch.testing.assert_close(whole[mask], expected)
    assert (whole[~mask] == 0).all()


def test_normalisation_sums_in_place_too_and_broadcasts_masks():
    advantages = torch.tensor([[1.0, 3.0], [torch.nan, torch.nan]])
    mask = torch.tensor([[True], [False]])
    result = normalize_advantages(advantages, mask, lambda tensor: None)
    torch.testing.assert_close(
        result[0], torch.tensor([-1.0, 1.0]) / math.sqrt(2), rtol=1e-4, atol=0
    )
    assert result[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("values", [[], [2.0], [0.1] * 7])
def test_normalisation_of_what_does_not_vary_is_zero(values):
    result = normalize_advantages(torch.tensor(values))
    assert result.abs().max().item() < 1e-9 if values else result.numel() == 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", 0.5),
        ("kl", 0.5),
        ("k2", 0.125),
        ("mse", 0.125),
        ("abs", 0.5),
        ("k3", math.exp(-0.5) + 0.5 - 1),
        ("low_var_kl", math.exp(-0.5) + 0.5 - 1),
    ],
)
def test_kl_estimators_take_the_policy_first(kind, expected):
    estimate = kl_penalty(torch.tensor(-1.0), torch.tensor(-1.5), kind)
    assert estimate.item() == pytest.approx(expected, abs=1e-6)


def test_k1_and_k3_estimate_the_divergence_from_the_reference():
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = (policy * (policy / reference).log()).sum().item()
    for kind in ("k1", "k3"):
        mean = (policy * kl_penalty(policy.log(), reference.log(), kind)).sum().item()
        assert mean == pytest.approx(exact, rel=1e-5)


def test_the_gradient_of_k2_is_that_of_the_divergence():
    logits = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    reference = torch.tensor([0.1, 0.4, -0.3]).log_softmax(0)
    logp = logits.log_softmax(0)
    (exact,) = torch.autograd.grad(
        (logp.exp() * (logp - reference)).sum(), logits, retain_graph=True
    )
    sampled = (logp.exp().detach() * kl_penalty(logp, reference, "k2")).sum()
    torch.testing.assert_close(torch.autograd.grad(sampled, logits)[0], exact)


def test_k3_is_bounded_and_unknown_estimators_are_named():
    assert kl_penalty(torch.tensor(-100.0), torch.tensor(0.0), "k3").item() == 10.0
    with pytest.raises(ValueError, match="did you mean 'low_var_kl'"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "low_var")


def test_kl_in_rewards_is_taken_at_valid_steps():
    rewards = kl_penalised_rewards(
        torch.ones(2),
        logprobs=torch.tensor([-1.0, torch.nan]),
        ref_logprobs=torch.tensor([-3.0, 0.0]),
        kl_beta=0.5,
        kl_penalty_type="k1",
        loss_mask=torch.tensor([True, False]),
    )
    assert rewards.tolist() == [0.0, 1.0]
