"""Log-probabilities and entropies against torch.distributions."""

import pytest
import torch
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution

from rlinf.models.embodiment import gaussian


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rows_of_std", [None, 50])
def test_log_prob_and_entropy_of_a_gaussian(rows_of_std):
    mean, action = numbers(50, 4), 3 * numbers(50, 4, seed=1)
    log_std = numbers(4, seed=2) if rows_of_std is None else numbers(50, 4, seed=2)
    reference = Normal(mean, log_std.exp().expand(50, 4))
    ours = gaussian.log_prob(mean, log_std, action)
    torch.testing.assert_close(ours, reference.log_prob(action))
    torch.testing.assert_close(gaussian.entropy(log_std, 50), reference.entropy())


def test_log_slope_is_right_also_where_tanh_is_flat():
    u = torch.linspace(-3, 3, 101, dtype=torch.float64)
    torch.testing.assert_close(gaussian.log_slope(u), torch.log1p(-u.tanh().square()))
    far = gaussian.log_slope(torch.tensor([-40.0, 40.0]))
    torch.testing.assert_close(far, torch.full((2,), 2 * (0.6931472 - 40.0)))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.2), (0.5, 1.0), (-1.5, 0.7)])
def test_squashed_entropy_is_that_of_many_samples(mean, std):
    base = Normal(torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64))
    torch.manual_seed(0)
    u = base.sample((400_000,))
    sampled = -(base.log_prob(u) - gaussian.log_slope(u)).mean()
    ours = gaussian.squashed_entropy(torch.tensor([[mean]]), torch.tensor([std]).log())
    assert ours.item() == pytest.approx(sampled.item(), abs=0.01)


def test_a_policy_gives_these_log_probs(make_policy, make_obs, variant):
    policy = make_policy(**variant)
    actions, result = policy.predict_action_batch(make_obs())
    inputs = result["forward_inputs"]
    mean, log_std = policy._distribution(policy._trunk(inputs))
    base = Normal(mean, log_std.exp().expand_as(mean))
    if not policy.action_convention.squash:
        torch.testing.assert_close(result["prev_logprobs"], base.log_prob(inputs["action"]))
        return
    low, high = policy.action_range.low, policy.action_range.high
    span = ((high - low) / 2).repeat(policy.num_action_chunks)
    start = low.repeat(policy.num_action_chunks)
    transforms = [TanhTransform(cache_size=1), AffineTransform(start + span, span, cache_size=1)]
    reference = TransformedDistribution(base, transforms)
    flat = actions.flatten(1)
    torch.testing.assert_close(result["prev_logprobs"], reference.log_prob(flat), atol=5e-3, rtol=0)
