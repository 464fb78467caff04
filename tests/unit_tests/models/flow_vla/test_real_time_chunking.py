"""Real-time chunking of policies with an action expert, against the paper's steps in the open."""

import math

import pytest
import torch

from rlinf.models.embodiment.base_policy import ActionRange
from rlinf.utils.env_spec import EnvSpec
from tests.unit_tests.models.flow_vla.policies import KINDS, make
from tests.unit_tests.models.flow_vla.test_policies import see
from tests.unit_tests.models.openvla.policies import SPEC

HORIZON, EXECUTED, DELAY, LIMIT, STEPS = 5, 2, 1, 4.0, 3
NUMBERS, PADDED = 3, 8
FLOW_UNITS = EnvSpec(obs_dim=5, action_dim=3, action_low=(-1.0,) * 3, action_high=(1.0,) * 3)
KEYS = {"action_horizon": HORIZON, "rtc": {"delay": DELAY, "max_guidance": LIMIT}}


def weight(i):
    """Return how much action i of a plan is held to the last one, as the paper writes it."""
    if i < DELAY:
        return 1.0
    if i >= HORIZON - EXECUTED:
        return 0.0
    c = (HORIZON - EXECUTED - i) / (HORIZON - EXECUTED - DELAY + 1)
    return c * (math.exp(c) - 1) / (math.e - 1)


def slow_plan(policy, inputs, row, last):
    """Denoise the plan of one sample with whole Jacobians; `last` is in the units of the flow."""
    prefix = policy.prefix({key: value[row : row + 1] for key, value in inputs.items()})
    x = torch.zeros(HORIZON, PADDED)
    for step in range(STEPS):
        tau = step / STEPS

        def velocity(x, tau=tau):
            found = policy.network.velocity(prefix, x[None], torch.tensor([1 - tau]))[0]
            # The paper's time goes from noise to action.
            return -found[0]

        def expected(x, tau=tau):
            return x + (1 - tau) * velocity(x)

        error, now = torch.zeros(HORIZON, PADDED), expected(x)
        for i in range(HORIZON - EXECUTED):
            error[i, :NUMBERS] = weight(i) * (last[EXECUTED + i] - now[i, :NUMBERS])
        jacobian = torch.autograd.functional.jacobian(expected, x).view(x.numel(), x.numel())
        pull = (error.flatten() @ jacobian).view_as(x)
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        scale = LIMIT if tau == 0 else min(LIMIT, (1 - tau) / (tau * r2))
        x = (x + (velocity(x) + scale * pull) / STEPS).detach()
    return x[:, :NUMBERS]


@pytest.mark.parametrize("kind", KINDS)
def test_plans_are_those_of_the_paper(kind):
    policy = make(kind, spec=FLOW_UNITS, **KEYS)
    policy.action_range = ActionRange()  # Nothing is clipped.
    none = torch.full((HORIZON, NUMBERS), torch.nan)
    obs, last = see(), torch.stack([torch.rand(HORIZON, NUMBERS), none, none, none])
    actions, result = policy.predict_action_batch(obs, mode="eval", plan=last)
    free = policy.predict_action_batch(obs, mode="eval")[0]
    slow = slow_plan(policy, policy.policy_inputs(obs), 0, last[0])
    fast = result["plan"][0]
    torch.testing.assert_close(fast[DELAY:], slow[DELAY:], rtol=1e-3, atol=1e-3)
    assert torch.equal(fast[:DELAY], last[0, EXECUTED : EXECUTED + DELAY])
    assert (actions[0] - free[0]).abs().amax() > 0.01
    # Episodes that have just begun plan freely.
    torch.testing.assert_close(actions[1:], free[1:], rtol=1e-4, atol=1e-4)
    assert torch.equal(actions, result["plan"][:, :EXECUTED])


def test_a_plan_begins_with_what_is_done_and_is_as_long_as_what_is_denoised():
    policy = make("smolvla", **KEYS)
    for mode in ("train", "eval"):
        actions, result = policy.predict_action_batch(see(), mode=mode)
        assert result["plan"].shape == (4, HORIZON, NUMBERS)
        assert torch.equal(actions, result["plan"][:, :EXECUTED])
        low, high = (torch.tensor(bound) for bound in (SPEC.action_low, SPEC.action_high))
        assert ((result["plan"] >= low) & (result["plan"] <= high)).all()
    assert policy.carries_plan and policy.action_horizon == HORIZON
    assert not make("smolvla").carries_plan


def test_plans_that_are_too_short_for_the_delay_are_refused():
    with pytest.raises(ValueError, match=r"rtc\.delay 3 does not fit"):
        make("smolvla", action_horizon=4, rtc={"delay": 3})
