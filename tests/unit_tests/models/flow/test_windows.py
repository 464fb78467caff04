"""Plans that are made while actions of the last one are carried out: what is their own."""

from __future__ import annotations

import pytest
import torch

from rlinf.models import get_model
from rlinf.models.embodiment.flow.steps import noisy_step, time_grid
from rlinf.models.embodiment.flow.windows import carried_out
from rlinf.utils.env_spec import EnvSpec

SPEC = EnvSpec(obs_dim=4, action_dim=2, action_low=[-1, -2], action_high=[1, 2])
HORIZON, CHUNK, DELAY = 7, 3, 2
METHODS = [
    {},
    {"joint_logprob": True},
    {"noise_method": "flow_noise"},
    {"noise_method": "reinflow", "joint_logprob": True},
]


def make_policy(**keys):
    torch.manual_seed(0)
    own = {
        "model_type": "flow_policy",
        "hidden_sizes": [16],
        "num_action_chunks": CHUNK,
        "action_horizon": HORIZON,
        "add_value_head": True,
        "rtc": {"delay": DELAY, "rollouts": "delayed"},
    }
    return get_model({**own, **keys}, SPEC, torch.float32).eval()


def slow_logprobs(policy, inputs, row):
    """Return the log-probabilities of what a plan carries out, one number after the other."""
    features = policy.features({key: value[row : row + 1] for key, value in inputs.items()})
    steps, noisy = policy.flow.num_steps, int(inputs["denoise_step"][row])
    total = torch.zeros(CHUNK, 2)
    for step in range(steps) if policy.flow.joint_logprob else [noisy]:
        time = time_grid(steps)[step].expand(1)
        x, ahead = inputs["chain"][row, step][None], inputs["chain"][row, step + 1]
        learned = None if policy.noise_net is None else policy.noise_net(features, x, time)
        mean, std = noisy_step(policy.flow, x, policy.velocity(features, x, time), time, learned)
        for place in range(CHUNK):
            for number in range(2):
                at = 2 * (int(inputs["decided"][row]) + place) + number
                normal = torch.distributions.Normal(mean[0, at], std[0, at])
                total[place, number] += normal.log_prob(ahead[at])
    return (total / steps if policy.flow.joint_logprob else total).flatten()


@pytest.mark.parametrize("keys", METHODS)
def test_what_a_plan_decides_is_behind_what_was_decided(keys):
    policy, decided = make_policy(**keys), torch.tensor([0, DELAY, DELAY, 0])
    obs = {"states": torch.randn(4, 4)}
    actions, result = policy.predict_action_batch(obs, decided=decided)
    inputs = result["forward_inputs"]
    for row, begin in enumerate(decided.tolist()):
        assert torch.equal(actions[row], result["plan"][row, begin : begin + CHUNK])
        slow = slow_logprobs(policy, inputs, row)
        torch.testing.assert_close(result["prev_logprobs"][row], slow, rtol=1e-4, atol=1e-4)
    out = policy(forward_inputs=inputs, compute_values=True, compute_entropy=True)
    torch.testing.assert_close(out["logprobs"], result["prev_logprobs"], rtol=1e-4, atol=1e-4)
    assert out["entropy"].shape == out["logprobs"].shape


def test_a_gradient_reaches_what_is_carried_out_alone():
    policy = make_policy(joint_logprob=True, noise_method="flow_noise", num_steps=1)
    obs = {"states": torch.randn(2, 4)}
    decided = torch.tensor([0, DELAY])
    inputs = policy.predict_action_batch(obs, decided=decided)[1]["forward_inputs"]
    policy(forward_inputs=inputs)["logprobs"][1].sum().backward()
    of_numbers = list(policy.velocity.parameters())[-1].grad
    touched = of_numbers.view(HORIZON, 2).abs().sum(1) > 0
    assert touched.tolist() == [DELAY <= place < DELAY + CHUNK for place in range(HORIZON)]


def test_parts_of_plans_are_cut_row_by_row():
    plans = torch.arange(2 * 5 * 3).view(2, 5, 3)
    found = carried_out(plans, 2, torch.tensor([3, 1]))
    assert torch.equal(found, torch.stack([plans[0, 3:5], plans[1, 1:3]]))
    assert torch.equal(carried_out(plans, 2), plans[:, :2])
