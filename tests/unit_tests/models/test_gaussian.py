"""Gaussians, plain and squashed, against torch.distributions."""

import pytest
import torch
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution

from rlinf.models.embodiment.distributions import Gaussian, SquashedGaussian
from rlinf.models.embodiment.distributions.gaussian import log_slope
from tests.unit_tests.models.conftest import ACTOR_CRITICS, name_of


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rows_of_std", [None, 50])
def test_log_prob_entropy_and_samples_of_a_gaussian(rows_of_std):
    mean, action = numbers(50, 4), 3 * numbers(50, 4, seed=1)
    log_std = numbers(4, seed=2) if rows_of_std is None else numbers(50, 4, seed=2)
    reference = Normal(mean, log_std.exp().expand(50, 4))
    ours = Gaussian(mean, log_std)
    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    noise = numbers(50, 4, seed=3)
    torch.testing.assert_close(ours.sample(noise), mean + log_std.exp() * noise)
    assert torch.equal(ours.mode(), mean)


def test_log_slope_is_right_also_where_tanh_is_flat():
    u = torch.linspace(-3, 3, 101, dtype=torch.float64)
    torch.testing.assert_close(log_slope(u), torch.log1p(-u.tanh().square()))
    far = log_slope(torch.tensor([-40.0, 40.0]))
    torch.testing.assert_close(far, torch.full((2,), 2 * (0.6931472 - 40.0)))


def squashed(mean, log_std, scale):
    """Returns ours, and torch's distribution of the squashed actions."""
    base = Normal(mean, log_std.exp().expand_as(mean))
    transforms = [TanhTransform(cache_size=1), AffineTransform(0.0, scale, cache_size=1)]
    reference = TransformedDistribution(base, transforms)
    return SquashedGaussian(mean, log_std, scale.log()), reference


def test_log_prob_of_a_squashed_gaussian():
    mean, log_std, scale = numbers(50, 4), numbers(4, seed=1) - 1, numbers(4, seed=2).exp()
    ours, reference = squashed(mean, log_std, scale)
    u = ours.sample(numbers(50, 4, seed=3))
    torch.testing.assert_close(ours.log_prob(u), reference.log_prob(scale * u.tanh()))
    far = torch.full((50, 4), 30.0, dtype=torch.float64)
    assert ours.log_prob(far).isfinite().all()


def test_samples_with_gradients_in_mean_and_deviation():
    mean, log_std = numbers(20, 3).requires_grad_(), numbers(3, seed=1).requires_grad_()
    scale, noise = numbers(3, seed=2).exp(), numbers(20, 3, seed=3)

    def loss(mean, log_std):
        """As the actor of SAC has it: temperature times log-probability minus value."""
        ours = SquashedGaussian(mean, log_std, scale.log())
        u = ours.rsample(noise)
        return (0.2 * ours.log_prob(u) - (scale * u.tanh() - 0.3).square()).sum()

    assert torch.autograd.gradcheck(loss, (mean, log_std))
    ours, reference = squashed(mean, log_std, scale)
    u = ours.rsample(noise)
    own = torch.autograd.grad(ours.log_prob(u).sum(), (mean, log_std))
    actions = scale * (mean + log_std.exp() * noise).tanh()
    theirs = torch.autograd.grad(reference.log_prob(actions).sum(), (mean, log_std))
    torch.testing.assert_close(own, theirs, atol=1e-6, rtol=1e-6)
    assert ours.has_rsample and not ours.sample(noise).requires_grad
    assert torch.equal(ours.sample(noise), u)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.2), (0.5, 1.0), (-1.5, 0.7)])
def test_squashed_entropy_is_that_of_many_samples(mean, std):
    base = Normal(torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64))
    torch.manual_seed(0)
    u = base.sample((400_000,))
    sampled = -(base.log_prob(u) - log_slope(u)).mean() + 0.4
    ours = SquashedGaussian(
        torch.tensor([[mean]]), torch.tensor([std]).log(), torch.tensor([0.4])
    ).entropy()
    assert ours.item() == pytest.approx(sampled.item(), abs=0.01)


OF_NUMBERS = [keys for keys in ACTOR_CRITICS if "spec" not in keys]


@pytest.mark.parametrize("keys", OF_NUMBERS, ids=name_of)
def test_a_policy_gives_these_log_probs(make_policy, make_obs, keys):
    policy = make_policy(**keys)
    actions, result = policy.predict_action_batch(make_obs())
    inputs = result["forward_inputs"]
    own = policy.distribution(policy._trunk(inputs))
    base = Normal(own.mean, own.log_std.exp().expand_as(own.mean))
    if not policy.action_range.squash:
        torch.testing.assert_close(result["prev_logprobs"], base.log_prob(inputs["action"]))
        return
    low, high = policy.action_head.low, policy.action_head.high
    span = ((high - low) / 2).repeat(policy.num_action_chunks)
    start = low.repeat(policy.num_action_chunks)
    transforms = [TanhTransform(cache_size=1), AffineTransform(start + span, span, cache_size=1)]
    reference = TransformedDistribution(base, transforms)
    flat = actions.flatten(1)
    torch.testing.assert_close(result["prev_logprobs"], reference.log_prob(flat), atol=5e-3, rtol=0)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_a_sample_and_its_log_prob_are_those_of_both_methods(kind):
    mean, log_std = numbers(20, 3).requires_grad_(), numbers(20, 3, seed=1).requires_grad_()
    noise, weights = numbers(20, 3, seed=2), numbers(20, 3, seed=3)
    made = Gaussian(mean, log_std)
    if kind == "squashed":
        made = SquashedGaussian(mean, log_std, numbers(3, seed=4))
    action = made.rsample(noise)
    slow = action, made.log_prob(action)
    quick = made.rsample_with_log_prob(noise)
    torch.testing.assert_close(quick, slow)
    grads = [
        torch.autograd.grad((a.sin() + weights * p).sum(), [mean, log_std])
        for a, p in (quick, slow)
    ]
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("kind", [Gaussian, SquashedGaussian])
@pytest.mark.parametrize("std_shape", [(4,), (5, 4)])
def test_steps_as_one_are_what_they_are_one_by_one(kind, std_shape):
    more = () if kind is Gaussian else (numbers(4, seed=9),)
    # Weights may change from step to step, and deviations with them.
    steps = [kind(numbers(5, 4, seed=t), numbers(*std_shape, seed=20 + t), *more) for t in range(3)]
    actions = numbers(3, 5, 4, seed=8)
    whole = kind.stack(steps)
    one_by_one = [step.log_prob(action) for step, action in zip(steps, actions, strict=True)]
    torch.testing.assert_close(whole.log_prob(actions), torch.stack(one_by_one))
    torch.testing.assert_close(whole.entropy(), torch.stack([step.entropy() for step in steps]))
    assert steps[0].mean.shape == (5, 4), "the steps stay as they are"
