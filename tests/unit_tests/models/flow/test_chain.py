"""Chains: log-probabilities against explicit Gaussians, of each step, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf.models.embodiment.flow.chain import (
    ALL_STEPS,
    NO_STEP,
    chain_log_probs,
    gaussian_entropy,
    gaussian_log_prob,
    noisy_step_numbers,
    sample_chain,
)
from rlinf.models.embodiment.flow.steps import FlowSettings, noisy_step

METHODS = ["flow_sde", "flow_cps", "flow_noise", "reinflow"]


class Network(torch.nn.Module):
    def __init__(self, learns):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.learns = torch.nn.Linear(7, 12), learns

    def forward(self, x, time):
        out = self.layer(torch.cat([x.flatten(1), time[:, None]], 1))
        std = out[:, 6:].sigmoid().view(-1, 2, 3) * 0.1 + 0.05 if self.learns else None
        return out[:, :6].view(-1, 2, 3), std


def sampled(method, joint, count=5, steps=3):
    settings = FlowSettings(steps, method, 0.6, joint)
    network = Network(method in ("flow_noise", "reinflow"))
    g = torch.Generator().manual_seed(1)
    start = torch.randn(count, 2, 3, generator=g)
    noise = torch.randn(count, settings.drawn_steps, 2, 3, generator=g)
    noisy = noisy_step_numbers(settings, torch.rand(count, generator=g))
    return network, settings, sample_chain(network, settings, start, noise, noisy)


def slow_log_probs(network, settings, chain):
    """Each step of each sample by itself, as a Gaussian of torch."""
    count, steps = len(chain.states), settings.num_steps
    found = torch.zeros_like(chain.states[:, 0])
    entropy = torch.zeros_like(found)
    for row in range(count):
        for step in range(settings.noisy_steps):
            if int(chain.noisy[row]) not in (step, ALL_STEPS):
                continue
            x, time = chain.states[row : row + 1, step], torch.tensor([1 - step / steps])
            velocity, learned = network(x, time)
            mean, std = noisy_step(settings, x, velocity, time, learned)
            own = torch.distributions.Normal(mean[0], std[0])
            found[row] += own.log_prob(chain.states[row, step + 1])
            entropy[row] += own.entropy()
    parts = steps if settings.joint_logprob else 1
    return found / parts, entropy / parts


@pytest.mark.parametrize(
    ("method", "joint"),
    [*((method, True) for method in METHODS), *((method, False) for method in METHODS[:3])],
)
def test_log_probabilities_are_those_of_each_step(method, joint):
    network, settings, chain = sampled(method, joint)
    logprobs, entropy = chain_log_probs(network, settings, chain.states, chain.noisy, entropy=True)
    expected, spread = slow_log_probs(network, settings, chain)
    torch.testing.assert_close(logprobs, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy, spread, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(chain.logprobs, logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_finite_and_reach_the_network(method):
    network, settings, chain = sampled(method, joint=True)
    logprobs, entropy = chain_log_probs(network, settings, chain.states, chain.noisy, entropy=True)
    (logprobs.sum() + entropy.sum()).backward()
    gradient = network.layer.weight.grad
    assert torch.isfinite(gradient).all() and gradient[:6].abs().sum() > 0
    assert (gradient[6:].abs().sum() > 0) == network.learns


def test_only_the_step_with_noise_leaves_the_ode():
    network, settings, chain = sampled("flow_sde", joint=False, count=40)
    assert set(chain.noisy.tolist()) == {0, 1, 2}
    for row, noisy in enumerate(chain.noisy.tolist()):
        for step in range(3):
            x, time = chain.states[row : row + 1, step], torch.tensor([1 - step / 3])
            ahead = x - network(x, time)[0] / 3
            same = torch.allclose(ahead[0], chain.states[row, step + 1], atol=1e-6)
            assert same == (step != noisy)


def test_without_noise_nothing_is_left_to_chance():
    network, settings, chain = sampled("flow_ode", joint=False)
    assert chain.noisy.tolist() == [NO_STEP] * 5 and not chain.logprobs.any()
    logprobs, entropy = chain_log_probs(network, settings, chain.states, chain.noisy, entropy=True)
    assert not logprobs.any() and not entropy.any()
    # Chains of an evaluation, among those of a method that has noise.
    sde = FlowSettings(3, "flow_sde")
    logprobs, _ = chain_log_probs(network, sde, chain.states, chain.noisy)
    assert not logprobs.any()


def test_a_deviation_of_zero_counts_as_zero():
    std = torch.tensor([0.0, 0.5], requires_grad=True)
    found = gaussian_log_prob(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.5]), std)
    assert found[0].item() == 0.0
    assert found[1].item() == pytest.approx(-0.5 - math.log(0.5) - 0.5 * math.log(2 * math.pi))
    (found.sum() + gaussian_entropy(std).sum()).backward()
    assert torch.isfinite(std.grad).all()
