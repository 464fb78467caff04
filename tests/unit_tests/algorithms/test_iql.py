"""Losses of implicit Q-learning beside loops over single samples."""

import math

import pytest
import torch

from rlinf.algorithms.iql import advantage_weights, expectile_loss, weighted_regression_loss


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.95])
def test_expectile_loss_weighs_the_sign_of_the_error(expectile):
    g = torch.Generator().manual_seed(0)
    values, target = torch.randn(20, generator=g), torch.randn(20, generator=g)
    total = 0.0
    for v, q in zip(values.tolist(), target.tolist(), strict=True):
        u = q - v
        total += abs(expectile - (1.0 if u < 0 else 0.0)) * u**2
    assert float(expectile_loss(values, target, expectile, 32)) == pytest.approx(total / 32)


def test_its_minimum_is_the_expectile():
    target = torch.tensor([0.0, 0.0, 0.0, 1.0])
    for expectile in (0.5, 0.9):
        value = torch.tensor(0.0, requires_grad=True)
        for _ in range(3000):
            loss = expectile_loss(value.expand(4), target, expectile, 4)
            (slope,) = torch.autograd.grad(loss, value)
            value.data -= 0.05 * slope
        # tau (1 - m) = 3 (1 - tau) m
        found = expectile / (expectile + 3 * (1 - expectile))
        assert float(value.detach()) == pytest.approx(found, abs=1e-4)


def test_weights_are_bounded_and_finite():
    advantages = torch.tensor([-2.0, 0.0, 1.0, 2.0, 1e6])
    weights = advantage_weights(advantages, 3.0, 100.0)
    expected = [min(math.exp(3.0 * a), 100.0) for a in (-2.0, 0.0, 1.0, 2.0)] + [100.0]
    assert weights.tolist() == pytest.approx(expected)
    assert advantage_weights(advantages, 0.0, 100.0).tolist() == [1.0] * 5


def test_regression_counts_valid_actions_only():
    g = torch.Generator().manual_seed(1)
    logprobs = torch.randn(6, 3 * 2, generator=g)
    logprobs[2, 4] = math.nan
    valid = torch.ones(6, 3, dtype=torch.bool)
    valid[2, 2] = valid[5, 1] = valid[5, 2] = False
    weights = torch.rand(6, generator=g)
    total = 0.0
    for n in range(6):
        for c in range(3):
            for a in range(2):
                if valid[n, c]:
                    total -= float(weights[n]) * float(logprobs[n, 2 * c + a])
    found = weighted_regression_loss(logprobs, valid, weights, 10)
    assert float(found) == pytest.approx(total / 10, rel=1e-5)
