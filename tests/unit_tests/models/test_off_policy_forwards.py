"""Forward passes for learners from a replay buffer, on all kinds of policies."""

import math

import pytest
import torch

from tests.unit_tests.models.conftest import CHOICES, EVEN_CHOICES, SPEC

NUMBERS = {"add_q_head": True, "distribution": "squashed_gaussian", "state_dependent_std": True}
VARIANTS = [
    {**NUMBERS},
    {**NUMBERS, "num_action_chunks": 3, "num_q_heads": 5, "q_hidden_sizes": [7]},
    {**NUMBERS, "share_trunk": True, "q_layer_norm": True, "orthogonal_init": False},
    {**NUMBERS, "model_type": "cnn_policy", "random_shift": 2, "activation": "silu"},
    {"add_q_head": True, "spec": CHOICES, "num_action_chunks": 2},
    {"add_q_head": True, "spec": EVEN_CHOICES, "model_type": "cnn_policy"},
]


def noise_of(policy, count=8):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, policy.num_action_chunks * policy.action_dim, generator=generator)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rollouts_hold_what_a_replay_buffer_keeps(make_policy, make_obs, variant):
    policy, obs = make_policy(**variant), make_obs()
    kept = policy.replay_inputs(obs)
    of_rollout = policy.predict_action_batch(obs)[1]["forward_inputs"]
    assert {*kept, "action"} == set(of_rollout)
    for name, tensor in kept.items():
        assert tensor.dtype == of_rollout[name].dtype and tensor.shape == of_rollout[name].shape


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_actor_learns_by_its_actions_and_nothing_else_does(make_policy, make_obs, variant):
    policy = make_policy(**variant, add_value_head=False)
    inputs = policy.replay_inputs(make_obs())
    if policy.action_range.choices is None:
        drawn = policy("sac", forward_inputs=inputs, noise=noise_of(policy))
        values = policy("sac_q", forward_inputs=inputs, actions=drawn["actions"], frozen=True)
        (values.amin(0) - drawn["logprobs"]).sum().backward()
    else:
        log_probs = policy("sac", forward_inputs=inputs)["log_probs"]
        values = policy("sac_q", forward_inputs=inputs, frozen=True)
        assert not values.requires_grad
        (log_probs.exp() * values[0]).sum().backward()
    with_gradient = {name for name, p in policy.named_parameters() if p.grad is not None}
    of_actor = {n for n, _ in policy.named_parameters() if not policy.is_critic_parameter(n)}
    assert with_gradient == of_actor


@pytest.mark.parametrize("variant", VARIANTS)
def test_critics_learn_with_their_encoder(make_policy, make_obs, variant):
    policy = make_policy(**variant)
    inputs = policy.replay_inputs(make_obs())
    actions = policy.predict_action_batch(make_obs())[0]
    values = policy("sac_q", forward_inputs=inputs, actions=actions)
    heads, width = policy.num_q_heads, policy.num_action_chunks * policy.action_dim
    if policy.action_range.choices is None:
        assert values.shape == (heads, 8)
    else:
        assert values.shape == (heads, 8, width, max(policy.action_range.choices))
    values.square().sum().backward()
    with_gradient = {name for name, p in policy.named_parameters() if p.grad is not None}
    of_critic = {n for n, _ in policy.named_parameters() if policy.is_critic_parameter(n)}
    assert with_gradient == of_critic
    is_cnn = variant.get("model_type") == "cnn_policy"
    assert any(name.startswith("encoders.") for name in of_critic) == is_cnn


def test_densities_are_those_of_actions_scaled_to_one(make_policy, make_obs):
    policy = make_policy(**NUMBERS)
    obs, noise = make_obs(), noise_of(policy)
    drawn = policy.sac_forward(policy.replay_inputs(obs), noise)
    actions, result = policy.predict_action_batch(obs, noise=noise)
    torch.testing.assert_close(drawn["actions"], actions)
    # Ranges of 2, 4 and 1 are scaled to 2.
    shift = math.log(1.0) + math.log(2.0) + math.log(0.5)
    torch.testing.assert_close(drawn["logprobs"], result["prev_logprobs"].sum(-1) + shift)


def test_actions_reach_critics_scaled_to_one(make_policy):
    policy = make_policy(**NUMBERS, num_action_chunks=2)
    low, high = torch.tensor(SPEC.action_low).float(), torch.tensor(SPEC.action_high).float()
    actions = torch.stack([low, high]).expand(4, 2, 3)
    scaled = policy.action_head.scaled(actions)
    assert torch.equal(scaled, torch.tensor([[-1.0] * 3 + [1.0] * 3] * 4))


@pytest.mark.parametrize("keys", [NUMBERS, {"distribution": "gaussian"}])
def test_random_actions_fill_their_range(make_policy, make_obs, keys):
    policy = make_policy(**keys)
    actions, result = policy.predict_action_batch(make_obs(4000), mode="random")
    actions = actions[:, 0]
    low, high = torch.tensor(SPEC.action_low).float(), torch.tensor(SPEC.action_high).float()
    assert (actions >= low).all() and (actions <= high).all()
    share = (actions - low) / (high - low)
    for k in range(1, 10):
        torch.testing.assert_close(
            (share < k / 10).float().mean(0), torch.full((3,), k / 10), rtol=0, atol=0.04
        )
    assert result["prev_logprobs"].isfinite().all()


def test_random_choices_are_alike(make_policy, make_obs):
    policy = make_policy(spec=CHOICES)
    actions = policy.predict_action_batch(make_obs(4000), mode="random")[0][:, 0]
    for d, (count, low) in enumerate(zip([2, 4, 3], [0, -1, 5], strict=True)):
        shares = torch.bincount(actions[:, d] - low, minlength=count) / 4000
        assert len(shares) == count
        torch.testing.assert_close(shares, torch.full((count,), 1 / count), rtol=0, atol=0.04)


def test_nobody_draws_from_a_range_without_end(make_policy, make_obs):
    policy = make_policy(spec=type(SPEC)(obs_dim=6, action_dim=3))
    with pytest.raises(ValueError, match=r"set algorithm\.random_steps to 0"):
        policy.predict_action_batch(make_obs(), mode="random")
