"""Flow policies with an action expert: chains, values, what they see, and learning."""

import pytest
import torch

from rlinf.models.embodiment.check_policy import check_policy
from rlinf.models.embodiment.flow.chain import gaussian_log_prob
from rlinf.models.embodiment.flow.steps import noisy_step, time_grid
from tests.unit_tests.models.flow_vla.policies import KINDS, make
from tests.unit_tests.models.openvla.policies import SPEC, TEXTS, observe

pytestmark = pytest.mark.parametrize("kind", KINDS)
METHODS = [
    {},
    {"joint_logprob": True},
    {"noise_method": "flow_noise"},
    {"noise_method": "reinflow", "joint_logprob": True},
    {"noise_method": "flow_cps", "action_horizon": 4},
    {"value_source": "expert", "value_type": "action_level", "action_horizon": 3},
]


def see(count=4, **keys):
    """Observations with two cameras of different sizes."""
    obs = observe(count, cameras=2, size=12, **keys)
    wrist = torch.randint(0, 256, (count, 1, 20, 10, 3), dtype=torch.uint8)
    return obs | {"wrist_images": wrist}


@pytest.mark.parametrize("keys", METHODS, ids=lambda keys: "-".join(map(str, keys.values())))
def test_what_a_rollout_computes_is_computed_again(kind, keys):
    policy = make(kind, add_value_head=True, **keys)
    obs = see()
    assert check_policy(policy, obs) == []
    for mode in ("train", "eval"):
        actions, result = policy.predict_action_batch(obs, mode=mode)
        out = policy(
            forward_inputs=result["forward_inputs"], compute_values=True, compute_entropy=True
        )
        assert actions.shape == (4, 2, 3) and out["logprobs"].shape == (4, 6)
        torch.testing.assert_close(out["logprobs"], result["prev_logprobs"], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(out["values"], result["prev_values"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(policy.predict_values(obs), result["prev_values"])


def test_a_log_probability_is_that_of_the_noisy_step_of_what_is_done(kind):
    policy = make(kind, action_horizon=4)
    _, result = policy.predict_action_batch(see())
    inputs = result["forward_inputs"]
    grid = time_grid(3)
    for row, step in enumerate(inputs["denoise_step"].tolist()):
        own = policy.prefix({key: rows[row : row + 1] for key, rows in inputs.items()})
        x, ahead = (inputs["chain"][row, n].view(1, 4, 8) for n in (step, step + 1))
        time = grid[step].expand(1)
        velocity = policy.network.velocity(own, x, time)[0]
        mean, std = noisy_step(policy.flow, x, velocity, time)
        density = gaussian_log_prob(ahead, mean, std)[:, :2, :3].flatten()
        torch.testing.assert_close(result["prev_logprobs"][row], density, atol=1e-4, rtol=1e-4)


def test_what_was_decided_before_a_plan_has_no_probability(kind):
    rtc = {"delay": 1, "rollouts": "delayed"}
    policy = make(kind, action_horizon=4, rtc=rtc, add_value_head=True)
    assert policy.decided_in_rollouts == 1
    obs, decided = see(), torch.tensor([1, 0, 1, 1])
    noise = torch.randn(4, policy.noise_width)
    actions, result = policy.predict_action_batch(obs, noise=noise, decided=decided)
    first, plain = policy.predict_action_batch(obs, noise=noise)
    inputs, plan = result["forward_inputs"], result["plan"]
    assert torch.equal(plan, plain["plan"])
    assert torch.equal(actions[1], first[1]) and torch.equal(actions[0], plan[0, 1:3])
    shared, later = plain["prev_logprobs"][:, 3:], result["prev_logprobs"][:, :3]
    torch.testing.assert_close(later[[0, 2, 3]], shared[[0, 2, 3]])
    torch.testing.assert_close(result["prev_logprobs"][1], plain["prev_logprobs"][1])
    again = policy(forward_inputs=inputs)["logprobs"]
    torch.testing.assert_close(again, result["prev_logprobs"], atol=1e-4, rtol=1e-4)


def test_the_value_is_that_of_what_is_seen_when_the_actions_begin(kind):
    rtc = {"delay": 1, "rollouts": "delayed"}
    policy = make(kind, action_horizon=4, rtc=rtc, add_value_head=True)
    early, now = see(), see()
    now = now | {"states": -now["states"], "main_images": 255 - now["main_images"]}
    told = {"noise": torch.randn(4, policy.noise_width), "decided": torch.tensor([1, 0, 1, 1])}
    actions, result = policy.predict_action_batch(early, now=now, **told)
    plain, other = policy.predict_action_batch(early, **told)
    assert torch.equal(actions, plain)
    assert not torch.equal(result["prev_values"], other["prev_values"])
    torch.testing.assert_close(result["prev_values"], policy.predict_values(now))
    again = policy(forward_inputs=result["forward_inputs"], compute_values=True)
    torch.testing.assert_close(again["values"], result["prev_values"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(again["logprobs"], result["prev_logprobs"], atol=1e-4, rtol=1e-4)
    # Nobody keeps what nobody values.
    without = make(kind, action_horizon=4, rtc=rtc)
    kept = without.predict_action_batch(early, now=now, **told)[1]["forward_inputs"]
    assert not any(name.startswith("now.") for name in kept)


def test_the_policy_reads_instruction_state_and_pictures(kind):
    policy = make(kind)
    obs = see()
    noise = torch.randn(4, policy.noise_width)
    before = policy.predict_action_batch(obs, noise=noise)[1]["forward_inputs"]["action"]
    for change in (
        {"task_descriptions": TEXTS[::-1] * 2},
        {"states": -obs["states"]},
        {"main_images": 255 - obs["main_images"]},
        {"wrist_images": 255 - obs["wrist_images"]},
    ):
        after = policy.predict_action_batch(obs | change, noise=noise)[1]["forward_inputs"]
        assert (after["action"] - before).abs().amax(1).min() > 1e-4, change.keys()


def test_pictures_travel_as_they_are_and_texts_as_tokens(kind):
    policy = make(kind)
    inputs = policy.policy_inputs(see())
    length = policy.prompts(TEXTS, torch.zeros(2, 5) if kind == "pi05" else None).shape[1]
    assert {key: (x.dtype, tuple(x.shape)) for key, x in inputs.items()} == {
        "input_ids": (torch.int64, (4, length)),
        "states": (torch.float32, (4, 5)),
        "view_0": (torch.uint8, (4, 12, 12, 3)),
        "view_1": (torch.uint8, (4, 20, 10, 3)),
    }


def test_losses_of_matching_fall_and_count_what_is_no_padding(kind):
    policy = make(kind)
    obs, rng = see(), torch.Generator().manual_seed(0)
    policy.update_normalizer(obs)
    actions = torch.rand(4, 2, 3, generator=rng)
    noise = torch.randn(4, policy.sft_noise_width, generator=rng)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        found = policy("sft", observations=obs, actions=actions, noise=noise)["losses"]
        assert found.shape == (4, 6)
        losses.append(found.mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_the_loss_is_the_squared_error_of_the_velocity_of_whole_plans(kind):
    policy = make(kind, action_horizon=3)
    obs, actions = see(), torch.rand(4, 3, 3)
    noise = torch.randn(4, policy.sft_noise_width)
    found = policy("sft", observations=obs, actions=actions, noise=noise)["losses"]
    low, high = (torch.tensor(bound) for bound in (SPEC.action_low, SPEC.action_high))
    target = torch.zeros(4, 3, 8)
    target[..., :3] = 2 * (actions - low) / (high - low) - 1
    z = noise[:, :-1].view(4, 3, 8)
    t = (torch.special.ndtr(noise[:, -1]) ** (1 / 1.5) * 0.999 + 0.001).view(4, 1, 1)
    prefix = policy.prefix(policy.policy_inputs(obs))
    velocity, _ = policy.network.velocity(prefix, t * z + (1 - t) * target, t.flatten())
    expected = (velocity - (z - target)).square()[..., :3].flatten(1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_an_observation_is_encoded_once_for_all_steps_and_draws(kind, monkeypatch):
    policy = make(kind, num_steps=4, joint_logprob=True, add_value_head=True)
    encode, calls = policy.network.encode, []
    monkeypatch.setattr(
        policy.network, "encode", lambda *a, **k: (calls.append(1), encode(*a, **k))[1]
    )
    inputs = policy.predict_action_batch(see())[1]["forward_inputs"]
    assert len(calls) == 1
    policy(forward_inputs=inputs, compute_values=True, compute_entropy=True)
    assert len(calls) == 2
    width = inputs["chain"].shape[-1]
    policy("nft", forward_inputs=inputs, x=torch.randn(4, 3, width), time=torch.rand(4, 3))
    assert len(calls) == 3


def test_plans_in_the_range_stay_and_others_are_clipped(kind):
    """Also where a number of the actions never changed in the data, so that its spread is tiny."""
    policy = make(kind, action_horizon=3)
    policy.scale.spread[1] = 1e-8
    plans = 0.1 * torch.randn(4, 3, 8)
    plans[..., 0] = torch.tensor([0.3, 40.0, -40.0, 0.0])[:, None]
    found = policy.within_range(plans.flatten(1)).view(4, 3, 8)
    assert torch.equal(found[..., 3:], plans[..., 3:]) and torch.equal(found[0], plans[0])
    taken, wanted = (policy.scale.to_env(p[..., :3]) for p in (found, plans))
    low, high = (
        torch.tensor(bound) for bound in (policy.action_range.low, policy.action_range.high)
    )
    torch.testing.assert_close(taken, wanted.clamp(low, high))
    assert not torch.equal(found[1], plans[1])


def test_velocities_of_several_draws_are_those_of_each(kind):
    policy = make(kind, action_horizon=3)
    inputs = policy.predict_action_batch(see())[1]["forward_inputs"]
    x, time = torch.randn(4, 5, 3 * 8), torch.rand(4, 5)
    found = policy("nft", forward_inputs=inputs, x=x, time=time)
    prefix = policy.prefix(inputs)
    for draw in range(5):
        one = policy.network.velocity(prefix, x[:, draw].view(4, 3, 8), time[:, draw])[0]
        torch.testing.assert_close(found[:, draw], one.flatten(1), atol=1e-5, rtol=1e-4)
    found.sum().backward()
    assert all(p.grad is not None for n, p in policy.named_parameters() if "vision" in n)
    # Two of three actions are carried out, and three of eight numbers are no padding.
    done = policy.executed(inputs["chain"][:, -1])
    torch.testing.assert_close(done.flatten(1), inputs["action"])
    assert done.shape == (4, 2, 3) and policy.executed(found).shape == (4, 5, 2, 3)


@pytest.mark.parametrize("key", ["train_expert_only", "freeze_vision_encoder"])
def test_frozen_parts_do_not_learn(kind, key):
    policy = make(kind, **{key: True})
    frozen = {name for name, p in policy.network.named_parameters() if not p.requires_grad}
    parts = "prefix_parts" if key == "train_expert_only" else "vision_parts"
    paths = getattr(policy.network, parts)
    names = [name for name, _ in policy.network.named_parameters()]
    assert frozen and frozen == {name for name in names if name.startswith(paths)}
    loss = policy("sft", observations=see(), actions=torch.zeros(4, 2, 3))["losses"].mean()
    loss.backward()
    name = {"gr00t": "action_head.action_encoder.W1.W"}.get(kind, "action_in_proj.weight")
    assert policy.network.get_parameter(name).grad.abs().sum() > 0


def test_halves_give_nearly_the_same(kind):
    whole, half = make(kind), make(kind).to(torch.bfloat16)
    obs, noise = see(), torch.randn(4, whole.noise_width)
    one, two = (p.predict_action_batch(obs, noise=noise)[0] for p in (whole, half))
    assert half.scale.spread.dtype == torch.float32
    torch.testing.assert_close(one, two, atol=0.2, rtol=0.1)


def test_mistakes_are_told(kind):
    policy = make(kind)
    obs = see()
    with pytest.raises(ValueError, match="built for 5 numbers in 'states'"):
        policy.predict_action_batch(obs | {"states": torch.zeros(4, 3)})
    with pytest.raises(ValueError, match="num_images_in_input is 2, and .* of 1 camera"):
        policy.predict_action_batch(obs | {"wrist_images": None})
    with pytest.raises(ValueError, match="has a word that model.words does not list"):
        policy.predict_action_batch(obs | {"task_descriptions": ["dance"] * 4})
    with pytest.raises(ValueError, match="reads 'task_descriptions'"):
        policy.predict_action_batch(obs | {"task_descriptions": None})
    with pytest.raises(ValueError, match="raise model.max_prompt_length"):
        policy.predict_action_batch(obs | {"task_descriptions": ["open it " * 20] * 4})
    with pytest.raises(ValueError, match="draw no uniform actions"):
        policy.predict_action_batch(obs, mode="random")
    longer = make(kind, action_horizon=5)
    with pytest.raises(ValueError, match="2 actions follow .* set model.action_horizon to 2"):
        longer("sft", observations=obs, actions=torch.zeros(4, 2, 3))
    with pytest.raises(ValueError, match=r"no size 'hidden'; .*hidden_size"):
        make(kind, hf_config={"text": {"hidden": 3}})
    with pytest.raises(ValueError, match="2 actions in a chunk, and the network has places for 1"):
        make(kind, action_horizon=1)
    with pytest.raises(ValueError, match="neither model_path nor hf_config"):
        make(kind, hf_config={})
