"""Real-time chunking: weights, the guided velocity, and plans that go on."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf.models import get_model
from rlinf.models.embodiment.flow.guidance import (
    RealTimeChunking,
    guidance_scale,
    guided,
    prefix_weights,
)
from rlinf.models.embodiment.flow.network import VelocityNet
from rlinf.utils.env_spec import EnvSpec

SPEC = EnvSpec(obs_dim=4, action_dim=2, action_low=[-1, -2], action_high=[1, 2])
HORIZON, EXECUTED = 8, 3


def make_policy(delay=2, **keys):
    torch.manual_seed(0)
    own = {
        "model_type": "flow_policy",
        "hidden_sizes": [32, 32],
        "num_action_chunks": EXECUTED,
        "action_horizon": HORIZON,
        "num_steps": 8,
    }
    rtc = None if delay is None else {"delay": delay, "max_guidance": 5.0}
    policy = get_model({**own, "rtc": rtc, **keys}, SPEC, torch.float32)
    # Velocities that depend on what is seen: those of fresh weights hardly do.
    for parameter in policy.velocity.parameters():
        parameter.data.mul_(3.0)
    return policy.eval()


@pytest.mark.parametrize(("horizon", "executed", "delay"), [(8, 3, 2), (10, 5, 0), (6, 3, 3)])
def test_weights_are_those_of_the_paper(horizon, executed, delay):
    found = prefix_weights(horizon, executed, delay).tolist()
    for i, weight in enumerate(found):
        if i < delay:
            expected = 1.0
        elif i < horizon - executed:
            c = (horizon - executed - i) / (horizon - executed - delay + 1)
            expected = c * (math.exp(c) - 1) / (math.e - 1)
        else:
            expected = 0.0
        assert weight == pytest.approx(expected, abs=1e-6)


def test_the_scale_is_that_of_the_paper():
    for t in (0.9, 0.5, 0.25, 0.1):
        tau = 1 - t
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        expected = min(4.0, (1 - tau) / (tau * r2))
        assert float(guidance_scale(torch.tensor(t), 4.0)) == pytest.approx(expected, rel=1e-5)
    assert float(guidance_scale(torch.tensor(1.0), 4.0)) == 4.0


def test_the_velocity_has_the_product_with_the_jacobian():
    torch.manual_seed(1)
    net, features = VelocityNet(3, 4, (16,), "silu"), torch.randn(2, 3)

    def network(x, time):
        return net(features, x, time), None

    x, time = torch.randn(2, 4), torch.tensor([1.0, 0.4])
    target, weights = torch.randn(2, 4), torch.rand(2, 4)
    found, std = guided(network, target, weights, 5.0)(x, time)
    assert std is None and not found.requires_grad
    for row in range(2):
        t = time[row]

        def expected_action(point, row=row, t=t):
            return point - t * net(features[row : row + 1], point[None], t[None])[0]

        jacobian = torch.autograd.functional.jacobian(expected_action, x[row])
        error = weights[row] * (target[row] - expected_action(x[row]))
        pull = jacobian.T @ error
        plain = net(features[row : row + 1], x[row : row + 1], t[None])[0]
        expected = plain - guidance_scale(t, 5.0) * pull
        torch.testing.assert_close(found[row], expected.detach(), rtol=1e-4, atol=1e-5)


def test_decided_actions_are_those_of_the_last_plan():
    policy, obs = make_policy(), {"states": torch.randn(3, 4)}
    first = policy.predict_action_batch(obs, mode="eval")[1]["plan"]
    later = {"states": torch.randn(3, 4)}
    actions, result = policy.predict_action_batch(later, mode="eval", plan=first)
    assert torch.equal(actions[:, :2], first[:, EXECUTED : EXECUTED + 2])
    assert torch.equal(actions, result["plan"][:, :EXECUTED])
    assert not torch.equal(actions[:, 2], first[:, EXECUTED + 2])


def test_guided_plans_are_nearer_to_the_last_one():
    policy, free = make_policy(delay=1), make_policy(delay=None)
    first = policy.predict_action_batch({"states": torch.randn(16, 4)}, mode="eval")[1]["plan"]
    later = {"states": torch.randn(16, 4)}
    guided_plan = policy.predict_action_batch(later, mode="eval", plan=first)[1]["plan"]
    free_plan = free.predict_action_batch(later, mode="eval")[1]["plan"]
    rest = first[:, EXECUTED:]

    def gap(plan, begin, end):
        return float((plan[:, begin:end] - rest[:, begin:end]).abs().mean())

    assert gap(guided_plan, 1, 3) < 0.7 * gap(free_plan, 1, 3)


def test_without_a_last_plan_nothing_changes():
    policy, obs = make_policy(), {"states": torch.randn(2, 4)}
    plain = policy.predict_action_batch(obs, mode="eval")[0]
    none = torch.full((2, HORIZON, 2), torch.nan)
    torch.testing.assert_close(
        policy.predict_action_batch(obs, mode="eval", plan=none)[0], plain, rtol=0, atol=1e-6
    )


def test_only_what_is_carried_out_has_probabilities():
    policy = make_policy(delay=None)
    actions, result = policy.predict_action_batch({"states": torch.randn(5, 4)})
    assert actions.shape == (5, EXECUTED, 2) and result["plan"].shape == (5, HORIZON, 2)
    assert result["prev_logprobs"].shape == (5, EXECUTED * 2)
    assert result["forward_inputs"]["chain"].shape == (5, 9, HORIZON * 2)


@pytest.mark.parametrize(("delay", "horizon"), [(3, 5), (4, 8), (0, 3)])
def test_plans_that_are_too_short_for_the_delay_are_refused(delay, horizon):
    with pytest.raises(ValueError, match=r"rtc\.delay"):
        RealTimeChunking(delay).check(horizon, EXECUTED)
