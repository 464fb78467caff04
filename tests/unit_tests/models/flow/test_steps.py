"""One denoising step: the formulas, and that the SDE keeps the distribution of the ODE."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow.steps import FlowSettings, noisy_step, ode_step, time_grid


def slow_step(method, x, v, k, steps, level):
    """One number, by the book."""
    t, d = 1 - k / steps, 1 / steps
    clean, noise = x - v * t, x + v * (1 - t)
    if method == "flow_sde":
        sigma = level * math.sqrt(t / (1 - (t if k else t - d)))
        weight, std = (t - d) - sigma**2 * d / (2 * t), sigma * math.sqrt(d)
    else:
        weight, std = (
            (t - d) * math.cos(math.pi * level / 2),
            (t - d) * math.sin(math.pi * level / 2),
        )
    return (1 - (t - d)) * clean + weight * noise, std


@pytest.mark.parametrize("method", ["flow_sde", "flow_cps"])
@pytest.mark.parametrize("steps", [2, 5])
def test_mean_and_deviation_are_those_of_the_formula(method, steps):
    settings = FlowSettings(steps, method, 0.7)
    x, v = torch.randn(steps, 3), torch.randn(steps, 3)
    mean, std = noisy_step(settings, x, v, time_grid(steps)[:-1])
    for k in range(steps):
        for j in range(3):
            own, spread = slow_step(method, float(x[k, j]), float(v[k, j]), k, steps, 0.7)
            assert float(mean[k, j]) == pytest.approx(own, abs=1e-5)
            assert float(std[k, j]) == pytest.approx(spread, abs=1e-5)


def test_without_noise_the_step_is_that_of_the_ode():
    x, v = torch.randn(4, 3), torch.randn(4, 3)
    settings = FlowSettings(4, "flow_sde", 1e-6)
    mean, _ = noisy_step(settings, x, v, time_grid(4)[:-1])
    torch.testing.assert_close(mean, ode_step(x, v, 0.25), rtol=0, atol=1e-5)


def test_learned_noise_is_around_the_step_of_the_ode():
    x, v, std = torch.randn(2, 3), torch.randn(2, 3), torch.rand(2, 3)
    mean, own = noisy_step(FlowSettings(4, "flow_noise"), x, v, torch.tensor([1.0, 0.5]), std)
    assert torch.equal(own, std) and torch.equal(mean, ode_step(x, v, 0.25))


def test_an_sde_of_many_steps_keeps_the_distribution():
    """The exact velocity towards N(0.5, 0.3^2): all methods that keep marginals end there."""
    goal, spread = 0.5, 0.3

    def velocity(x, time):
        t = time[:, None]
        # x_t = t z + (1 - t) a is N((1 - t) goal, t^2 + (1 - t)^2 spread^2).
        variance = t**2 + ((1 - t) * spread) ** 2
        away = x - (1 - t) * goal
        return away * (t - (1 - t) * spread**2) / variance - goal, None

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(20000, 1, generator=generator)
    steps = 60
    everywhere = torch.full((20000,), -2)
    for method, level in (("flow_ode", 1.0), ("flow_sde", 0.3), ("flow_sde", 0.7)):
        settings = FlowSettings(steps, method, level, joint_logprob=True)
        noise = None
        if method != "flow_ode":
            noise = torch.randn(20000, steps, 1, generator=generator)
        actions = sample_chain(velocity, settings, start, noise, everywhere).states[:, -1]
        assert float(actions.mean()) == pytest.approx(goal, abs=0.02)
        assert float(actions.std()) == pytest.approx(spread, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise_method": "reinflow"}, "set joint_logprob to true"),
        ({"noise_method": "flow_cps", "num_steps": 1}, "at least 2"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        FlowSettings(**settings)
