"""Losses, targets and averages against loops over samples."""

import math

import pytest
import torch

from rlinf.algorithms.off_policy.averaging import polyak_update
from rlinf.algorithms.off_policy.heads import aggregate, draw_heads
from rlinf.algorithms.off_policy.losses import (
    actor_loss,
    actor_loss_of_choices,
    critic_loss,
    temperature,
    temperature_base,
    temperature_gradient,
)
from rlinf.algorithms.off_policy.targets import (
    bellman_target,
    soft_value,
    soft_value_of_choices,
)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_heads_are_aggregated_sample_by_sample(heads):
    values = numbers(heads, 7)
    columns = [[float(values[q, i]) for q in range(heads)] for i in range(7)]
    least, mean = aggregate(values, "min"), aggregate(values, "mean")
    assert least.tolist() == [min(column) for column in columns]
    assert mean.tolist() == pytest.approx([sum(column) / heads for column in columns])
    assert aggregate(values, "first").tolist() == values[0].tolist()
    with pytest.raises(ValueError, match="'min', 'mean' or 'first', not 'max'"):
        aggregate(values, "max")


def test_drawn_heads_are_different_ones_and_all_are_drawn_alike():
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(10)
    for _ in range(3000):
        drawn = draw_heads(10, 2, generator)
        assert len(set(drawn.tolist())) == 2
        counts[drawn] += 1
    # 600 expected of each, with a deviation of 22.
    assert (counts - 600).abs().max() < 100
    assert draw_heads(4, 4, generator) is None and draw_heads(4, None, generator) is None
    with pytest.raises(ValueError, match="critic_subsample_size is 3, but there are 2"):
        draw_heads(2, 3, generator)


def test_critic_loss_is_half_the_squared_error_of_each_function():
    values, target, weights = numbers(3, 6), numbers(6, seed=1), numbers(6, seed=2).abs()
    slow = sum(
        0.5 * (float(values[q, i]) - float(target[i])) ** 2 for q in range(3) for i in range(6)
    )
    assert float(critic_loss(values, target, 10)) == pytest.approx(slow / 10)
    weighted = sum(
        0.5 * float(weights[i]) * (float(values[q, i]) - float(target[i])) ** 2
        for q in range(3)
        for i in range(6)
    )
    assert float(critic_loss(values, target, 10, weights)) == pytest.approx(weighted / 10)


def test_targets_and_loss_of_sampled_actions():
    q, logp, rewards = numbers(6), numbers(6, seed=1), numbers(6, seed=2)
    discounts = torch.tensor([0.9, 0.0, 0.81, 0.9, 0.0, 0.9], dtype=torch.float64)
    alpha = torch.tensor(0.3, dtype=torch.float64)
    target = bellman_target(rewards, discounts, soft_value(q, logp, alpha))
    for i in range(6):
        expected = rewards[i] + discounts[i] * (q[i] - 0.3 * logp[i])
        assert float(target[i]) == pytest.approx(float(expected))
    assert torch.equal(soft_value(q, logp, None), q)
    slow = sum(0.3 * float(logp[i]) - float(q[i]) for i in range(6))
    assert float(actor_loss(q, logp, alpha, 12)) == pytest.approx(slow / 12)


def test_expectations_over_choices_are_exact():
    # Two numbers of three choices: the joint distribution has nine.
    q, log_probs = numbers(4, 2, 3), numbers(4, 2, 3, seed=1).log_softmax(-1)
    alpha = torch.tensor(0.7, dtype=torch.float64)
    value = soft_value_of_choices(q, log_probs, alpha)
    loss = actor_loss_of_choices(q, log_probs, alpha, 8)
    total = 0.0
    for n in range(4):
        expected = 0.0
        for a in range(3):
            for b in range(3):
                logp = float(log_probs[n, 0, a] + log_probs[n, 1, b])
                joint = float(q[n, 0, a] + q[n, 1, b])
                expected += math.exp(logp) * (joint - 0.7 * logp)
        assert float(value[n]) == pytest.approx(expected)
        total += -expected
    assert float(loss) == pytest.approx(total / 8)
    plain = soft_value_of_choices(q, log_probs, None)
    torch.testing.assert_close(plain, (log_probs.exp() * q).sum((1, 2)))


@pytest.mark.parametrize("kind", ["exp", "softplus"])
@pytest.mark.parametrize("alpha", [1e-3, 0.2, 1.0, 30.0])
def test_temperature_and_its_gradient(kind, alpha):
    base = temperature_base(alpha, kind).double().requires_grad_()
    value = temperature(base, kind)
    assert float(value) == pytest.approx(alpha, rel=1e-4)
    entropy = torch.tensor(-2.5, dtype=torch.float64)
    (value * (entropy - -3.0)).backward()
    ours = temperature_gradient(base.detach(), entropy, -3.0, kind)
    torch.testing.assert_close(ours, base.grad)
    # More entropy than wanted: alpha is to fall.
    assert float(ours) > 0


def test_slow_weights_follow():
    slow, fast = [numbers(3, 2), numbers(4)], [numbers(3, 2, seed=1), numbers(4, seed=2)]
    expected = [0.9 * s + 0.1 * f for s, f in zip(slow, fast, strict=True)]
    polyak_update(slow, fast, 0.1)
    torch.testing.assert_close(slow, expected)
    polyak_update(slow, fast, 1.0)
    torch.testing.assert_close(slow, fast)
