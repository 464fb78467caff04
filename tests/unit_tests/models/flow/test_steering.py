"""DSRL: noise within bounds, a flow that stays as it is, and gradients where they belong."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rlinf.models import get_model
from rlinf.models.embodiment.check_policy import check_policy
from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow_policy.steering import SteeredFlow
from rlinf.utils.env_spec import EnvSpec

SPEC = EnvSpec(obs_dim=4, action_dim=2, action_low=[-1, -2], action_high=[1, 2])
BOUND = 1.3
KEYS = {
    "model_type": "flow_policy",
    "hidden_sizes": [32],
    "num_action_chunks": 3,
    "action_horizon": 5,
    "use_dsrl": True,
    "add_q_head": True,
    "noise_bound": BOUND,
    "num_q_heads": 4,
    "steering_hidden_sizes": [16],
}


def make_policy(**changes) -> SteeredFlow:
    torch.manual_seed(0)
    policy = get_model({**KEYS, **changes}, SPEC, torch.float32)
    for parameter in [*policy.velocity.parameters(), *policy.steering.parameters()]:
        parameter.data.mul_(3.0)
    return policy


def observations(count=6):
    return {"states": torch.randn(count, 4, generator=torch.Generator().manual_seed(1))}


def test_it_keeps_the_contract_of_policies():
    assert check_policy(make_policy(), observations()) == []


@pytest.mark.parametrize("mode", ["train", "eval", "random"])
def test_actions_are_where_the_flow_leads_from_bounded_noise(mode):
    policy, obs = make_policy(), observations()
    noise = 5.0 * torch.randn(6, 2)
    actions, result = policy.predict_action_batch(obs, mode=mode, noise=noise)
    chosen = policy.replay_actions(
        actions[None], {"action": result["forward_inputs"]["action"][None]}
    )[0]
    assert chosen.shape == actions.shape and float(chosen.abs().max()) <= BOUND
    assert torch.equal(chosen[:, 0], chosen[:, 2])
    start = chosen[:, 0].repeat(1, 5)
    network = policy._network(policy.features({"states": obs["states"]}))
    plan = sample_chain(network, policy.flow, start).states[:, -1]
    expected = policy.action_head.from_scaled(plan)[:, :3]
    torch.testing.assert_close(actions, expected, rtol=0, atol=1e-6)
    if mode == "train":
        assert float(chosen.abs().max()) > 0.9 * BOUND


def test_densities_are_those_of_noise_over_its_bound():
    policy, obs = make_policy(), observations()
    noise = torch.randn(6, 2)
    out = policy(forward_type="sac", forward_inputs=obs, noise=noise)
    mean, log_std = policy.steering(policy.features(obs)).chunk(2, -1)
    plain = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    drawn = (mean + log_std.exp() * noise).tanh()
    torch.testing.assert_close(out["actions"][:, 0], BOUND * drawn)
    torch.testing.assert_close(out["logprobs"], plain.log_prob(drawn).sum(-1), rtol=1e-3, atol=1e-3)


def trained(policy):
    """The modules that have a gradient."""
    found = {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    return found


def test_gradients_are_in_the_actor_or_in_the_critics():
    policy, obs = make_policy(), observations()
    actions = torch.randn(6, 3, 2)
    policy(forward_type="sac_q", forward_inputs=obs, actions=actions).sum().backward()
    assert trained(policy) == {"q_head"}
    drawn = policy(forward_type="sac", forward_inputs=obs, noise=torch.randn(6, 2))
    values = policy(forward_type="sac_q", forward_inputs=obs, actions=drawn["actions"], frozen=True)
    (values.sum() + drawn["logprobs"].sum()).backward()
    assert trained(policy) == {"steering"}
    frozen = {n.partition(".")[0] for n, p in policy.named_parameters() if not p.requires_grad}
    assert frozen == {"velocity"}


def test_q_functions_see_the_noise_of_the_first_action():
    policy, obs = make_policy(), observations()
    actions = torch.randn(6, 3, 2)
    other = actions.clone()
    other[:, 1:] += 1.0
    values = policy(forward_type="sac_q", forward_inputs=obs, actions=actions)
    assert values.shape == (4, 6)
    assert torch.equal(values, policy(forward_type="sac_q", forward_inputs=obs, actions=other))
    other[:, 0] += 1.0
    assert not torch.equal(values, policy(forward_type="sac_q", forward_inputs=obs, actions=other))


def test_whoever_acts_has_no_critics():
    assert make_policy(add_q_head=False).num_q_heads == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dsrl": False}, "Q-functions of its noise alone"),
        ({"add_value_head": True}, "add_value_head to false"),
        ({"rtc": {"delay": 1}}, "leave out rtc"),
    ],
)
def test_keys_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make_policy(**changes)
