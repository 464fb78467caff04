"""Every built-in policy keeps the contract of BasePolicy."""

import copy
import pickle

import numpy as np
import pytest
import torch

from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.models.embodiment.check_policy import check_policy
from rlinf.models.embodiment.noise import EnvNoise
from rlinf.models.weights import load_weights, save_weights
from tests.unit_tests.models.conftest import CHOICES, SPEC


def recompute(policy, inputs):
    return policy(
        ForwardType.DEFAULT, forward_inputs=inputs, compute_entropy=True, compute_values=True
    )


def test_the_contract(make_policy, make_obs, variant):
    policy = make_policy(**variant)
    policy.update_normalizer(make_obs(100, seed=5))
    assert check_policy(policy, make_obs()) == []


def test_recomputing_gives_a_ratio_of_one(make_policy, make_obs, variant):
    policy = make_policy(**variant)
    policy.update_normalizer(make_obs(100, seed=5))
    results = [policy.predict_action_batch(make_obs(8, seed))[1] for seed in range(20)]
    inputs = {
        key: torch.cat([result["forward_inputs"][key] for result in results])
        for key in results[0]["forward_inputs"]
    }
    out = recompute(policy, inputs)
    before = torch.cat([result["prev_logprobs"] for result in results])
    values = torch.cat([result["prev_values"] for result in results])
    assert (out["logprobs"].exp() / before.exp() - 1).abs().max() < 1e-6
    assert (out["logprobs"] - before).abs().mean() < 1e-6
    torch.testing.assert_close(out["values"], values, atol=5e-6, rtol=1e-5)
    one = policy.predict_action_batch(make_obs())[1]
    same = recompute(policy, one["forward_inputs"])
    torch.testing.assert_close(same["logprobs"], one["prev_logprobs"], atol=1e-6, rtol=0)


def test_shapes(make_policy, make_obs, variant):
    policy = make_policy(**variant)
    chunks = variant.get("num_action_chunks", 1)
    actions, result = policy.predict_action_batch(make_obs(5))
    assert actions.shape == (5, chunks, 3)
    assert result["prev_logprobs"].shape == result["forward_inputs"]["action"].shape
    assert result["prev_logprobs"].shape == (5, chunks * 3)
    columns = chunks if variant.get("value_type") == "action_level" else 1
    assert result["prev_values"].shape == policy.predict_values(make_obs(5)).shape == (5, columns)
    out = recompute(policy, result["forward_inputs"])
    assert out["entropy"].shape == (5, chunks * 3) and out["values"].shape == (5, columns)
    assert out["logprobs"].dtype == result["prev_logprobs"].dtype == torch.float32


def test_only_what_is_asked_for_is_computed(make_policy, make_obs):
    policy = make_policy()
    inputs = policy.predict_action_batch(make_obs())[1]["forward_inputs"]
    out = policy(forward_inputs=inputs, compute_logprobs=False, compute_values=True)
    assert out["logprobs"] is None and out["entropy"] is None
    out["values"].sum().backward()
    assert all(parameter.grad is None for parameter in policy.policy_head.parameters())
    with pytest.raises(ValueError, match="no forward type 'nft'; it has 'default', 'sft', 'sac', "):
        policy(ForwardType.NFT)


def test_gradients_reach_every_weight(make_policy, make_obs, variant):
    policy = make_policy(**variant)
    inputs = policy.predict_action_batch(make_obs())[1]["forward_inputs"]
    out = recompute(policy, inputs)
    loss = out["logprobs"].square().mean() + out["entropy"].mean() + out["values"].square().mean()
    loss.backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_actions_are_clipped_but_the_stored_ones_are_not(make_policy, make_obs):
    policy = make_policy(init_log_std=1.5)
    actions, result = policy.predict_action_batch(make_obs(200))
    stored = result["forward_inputs"]["action"].view(200, 1, 3)
    low, high = torch.tensor([-1.0, -2, 0]), torch.tensor([1.0, 2, 1])
    assert (stored < low).any() and (stored > high).any()
    torch.testing.assert_close(actions, stored.clamp(low, high))
    assert policy.action_range.clip and policy.action_range.high == (1, 2, 1)
    free = make_policy(init_log_std=1.5, clip_actions=False)
    actions, result = free.predict_action_batch(make_obs(200))
    assert torch.equal(actions.flatten(1), result["forward_inputs"]["action"])
    actions.zero_()
    assert result["forward_inputs"]["action"].abs().sum() > 0


def test_choices_are_numbered_as_the_env_numbers_them(make_policy, make_obs):
    policy = make_policy(spec=CHOICES, num_action_chunks=2)
    actions, result = policy.predict_action_batch(make_obs(500))
    stored = result["forward_inputs"]["action"]
    assert actions.dtype == stored.dtype == policy.action_dtype == torch.int64
    wanted = [{0, 1}, {-1, 0, 1, 2}, {5, 6, 7}]
    assert [set(actions[..., i].flatten().tolist()) for i in range(3)] == wanted
    assert torch.equal(actions, stored.view(500, 2, 3) + torch.tensor([0, -1, 5]))
    assert policy.action_range.choices == (2, 4, 3)
    assert not any("log_std" in name for name in policy.state_dict())


def test_weights_that_are_not_finite_give_no_valid_choice(make_policy, make_obs):
    policy = make_policy(spec=CHOICES)
    with torch.no_grad():
        policy.policy_head.head.bias[0] = torch.nan
    for mode in ("train", "eval"):
        actions, _ = policy.predict_action_batch(make_obs(), mode=mode)
        assert (actions[..., 0] > 1).all() and (actions[..., 1] <= 2).all()


def test_acting_is_reproducible_by_generator(make_policy, make_obs, variant):
    policy = make_policy(**variant)
    runs = []
    for _ in range(2):
        policy.set_generator(torch.Generator().manual_seed(7))
        runs.append([policy.predict_action_batch(make_obs())[0] for _ in range(3)])
        torch.randn(5)
    assert torch.equal(torch.stack(runs[0]), torch.stack(runs[1]))
    assert not torch.equal(runs[0][0], runs[0][1])
    fixed = [policy.predict_action_batch(make_obs(), mode="eval")[0] for _ in range(2)]
    assert torch.equal(*fixed)


@pytest.mark.parametrize("spec", [SPEC, CHOICES], ids=["numbers", "choices"])
def test_noise_by_env_does_not_depend_on_the_split(make_policy, make_obs, spec):
    policy, obs = make_policy(spec=spec), make_obs(8)
    whole = EnvNoise(3, range(8), 3)
    halves = [EnvNoise(3, range(4), 3), EnvNoise(3, range(4, 8), 3)]
    for step in (0, 1, 63, 64, 5):
        all_at_once, _ = policy.predict_action_batch(obs, noise=whole.at(step))
        parts = [
            policy.predict_action_batch({"states": states}, noise=half.at(step))[0]
            for states, half in zip(obs["states"].split(4), halves, strict=True)
        ]
        torch.testing.assert_close(torch.cat(parts), all_at_once)
    steps = torch.stack([EnvNoise(3, range(50), 3).at(step) for step in range(100)])
    assert abs(steps.mean()) < 0.03 and abs(steps.std() - 1) < 0.03
    assert len(steps.flatten().unique()) > 0.999 * steps.numel()
    assert not torch.equal(EnvNoise(4, range(8), 3).at(0), whole.at(0))


def test_save_and_load(make_policy, make_obs, variant, tmp_path):
    policy = make_policy(**variant)
    policy.update_normalizer(make_obs(100, seed=5))
    save_weights(policy, tmp_path)
    other = make_policy(seed=1, model_path=str(tmp_path), **variant)
    expected = policy.predict_action_batch(make_obs(), mode="eval")
    actual = other.predict_action_batch(make_obs(), mode="eval")
    assert torch.equal(expected[0], actual[0])
    assert torch.equal(expected[1]["prev_values"], actual[1]["prev_values"])
    third = make_policy(seed=2, **variant)
    third.load_state_dict(policy.state_dict())
    assert torch.equal(third.predict_action_batch(make_obs(), mode="eval")[0], expected[0])


def test_weights_of_another_model_are_refused(make_policy, tmp_path):
    save_weights(make_policy(), tmp_path)
    with pytest.raises(ValueError, match=r"weight is \[128, 128\], not \[64, 128\]"):
        load_weights(make_policy(hidden_sizes=[128, 64]), tmp_path)
    with pytest.raises(ValueError, match="unknown value_head"):
        load_weights(make_policy(add_value_head=False), tmp_path)
    with pytest.raises(ValueError, match="no weights at"):
        load_weights(make_policy(), tmp_path / "absent")


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_copies_share_nothing(make_policy, make_obs, activation):
    policy = make_policy(activation=activation)
    policy.set_generator(torch.Generator().manual_seed(0))
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert other.generator is None and policy.generator is not None
        same = other.predict_action_batch(make_obs(), mode="eval")[0]
        assert torch.equal(same, policy.predict_action_batch(make_obs(), mode="eval")[0])


@pytest.mark.parametrize("model_type", ["mlp_policy", "cnn_policy"])
def test_half_precision_keeps_statistics_bounds_and_log_probs_exact(
    make_policy, make_obs, model_type
):
    policy = make_policy(model_type, dtype=torch.bfloat16)
    policy.update_normalizer(make_obs(100))
    assert policy.policy_head.head.weight.dtype == torch.bfloat16
    assert policy.normalizer.mean.dtype == torch.float64
    assert policy.normalizer.scale.dtype == policy.action_head.low.dtype == torch.float32
    assert check_policy(policy, make_obs(), tolerance=1e-3) == []


def test_observations_may_be_arrays(make_policy, make_obs):
    policy, obs = make_policy("cnn_policy"), make_obs()
    arrays = {
        "states": obs["states"].numpy().astype(np.float64),
        "main_images": obs["main_images"].numpy(),
    }
    expected, _ = policy.predict_action_batch(obs, mode="eval")
    torch.testing.assert_close(policy.predict_action_batch(arrays, mode="eval")[0], expected)


def test_bad_calls_say_what_is_wrong(make_policy, make_obs):
    policy = make_policy()
    with pytest.raises(ValueError, match="mode must be 'train', 'eval' or 'random', not 'test'"):
        policy.predict_action_batch(make_obs(), mode="test")
    with pytest.raises(ValueError, match=r"does not use the sampling parameter\(s\) temperature"):
        policy.predict_action_batch(make_obs(), temperature=0.5)
    with pytest.raises(ValueError, match="built for 6 numbers per observation, .* has 5"):
        policy.predict_action_batch({"states": torch.zeros(2, 5)})
    with pytest.raises(ValueError, match="needs 'states' in the observations; there are: main_im"):
        policy.predict_action_batch({"main_images": torch.zeros(2), "states": None})


def test_hooks_and_replaced_layers_take_part(make_policy, make_obs):
    policy, obs = make_policy(clip_actions=False), make_obs()
    before, _ = policy.predict_action_batch(obs, mode="eval")
    seen = []
    handle = policy.policy_head.hidden[0].register_forward_hook(lambda *_: seen.append(1))
    policy.predict_action_batch(obs, mode="eval")
    handle.remove()
    assert seen == [1]

    class Shifted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.25

    policy.policy_head.head.__class__ = Shifted
    after, _ = policy.predict_action_batch(obs, mode="eval")
    torch.testing.assert_close(after, before + 0.25)


def test_policies_without_values_return_zeros(make_policy, make_obs):
    policy = make_policy(add_value_head=False, value_type="action_level", num_action_chunks=2)
    assert torch.equal(policy.predict_values(make_obs()), torch.zeros(8, 2))
    assert not [name for name, _ in policy.named_parameters() if "value" in name]
