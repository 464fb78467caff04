"""DSRL on policies with an action expert: the model stays, and a small actor chooses its noise."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rlinf.models.embodiment.check_policy import check_policy
from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow_vla.folder import save_folder
from rlinf.models.registry import get_model
from tests.unit_tests.models.flow_vla.policies import KINDS, make, section
from tests.unit_tests.models.openvla.policies import SPEC, TEXTS, observe

BOUND = 1.3
DSRL = {
    "use_dsrl": True,
    "add_q_head": True,
    "noise_bound": BOUND,
    "num_q_heads": 4,
    "steering_hidden_sizes": [16],
    "steering_image_size": 16,
    "action_horizon": 3,
}


def steered(kind, **keys):
    policy = make(kind, **DSRL, **keys)
    for parameter in policy.steering.parameters():
        parameter.data.mul_(3.0)
    return policy


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_the_contract_of_policies(kind):
    assert check_policy(steered(kind), observe(cameras=2)) == []


@pytest.mark.parametrize("mode", ["train", "eval", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_where_the_flow_leads_from_bounded_noise(kind, mode):
    policy, obs = steered(kind), observe(cameras=2)
    actions, result = policy.predict_action_batch(obs, mode=mode, noise=5.0 * torch.randn(4, 3))
    inputs = result["forward_inputs"]
    chosen = policy.replay_actions(actions[None], {"action": inputs["action"][None]})[0]
    assert actions.shape == chosen.shape == (4, 2, 3) and float(chosen.abs().max()) <= BOUND
    start = torch.zeros(4, 3, 8)
    start[..., :3] = chosen[:, :1]
    network = policy._network(policy.prefix(inputs))
    with torch.no_grad():
        plan = sample_chain(network, policy.flow, start.flatten(1)).states[:, -1]
    expected = policy.scale.to_env(plan.view(4, 3, 8)[..., :3])[:, :2]
    low, high = (torch.tensor(bound) for bound in (SPEC.action_low, SPEC.action_high))
    torch.testing.assert_close(actions, expected.clamp(low, high), rtol=0, atol=1e-5)


def trained(policy):
    """The modules that have a gradient."""
    found = {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    return found


def test_gradients_are_in_the_actor_or_in_the_critics_and_their_encoders():
    policy = steered("smolvla")
    inputs = policy.policy_inputs(observe(cameras=2))
    policy("sac_q", forward_inputs=inputs, actions=torch.randn(4, 2, 3)).sum().backward()
    assert trained(policy) == {"q_head", "steering_encoders"}
    drawn = policy("sac", forward_inputs=inputs, noise=torch.randn(4, 3))
    values = policy("sac_q", forward_inputs=inputs, actions=drawn["actions"], frozen=True)
    (values.sum() + drawn["logprobs"].sum()).backward()
    assert trained(policy) == {"steering"} and values.shape == (4, 4)
    frozen = {n.partition(".")[0] for n, p in policy.named_parameters() if not p.requires_grad}
    assert frozen == {"network"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_actor_reads_the_instruction_and_not_what_stands_around_it(kind):
    policy, obs = steered(kind), observe(cameras=2)
    ids = policy.policy_inputs(obs)["instruction_ids"]
    said = policy.prompts.tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [text.split() for text in said] == [text.split() for text in obs["task_descriptions"]]
    other = {"task_descriptions": TEXTS[::-1] * 2}
    words = [
        policy.steering_features(policy.policy_inputs(seen))[:, -32:] for seen in (obs, obs | other)
    ]
    assert ((words[1] - words[0]).norm(dim=1) / words[0].norm(dim=1)).min() > 0.3
    moved = policy.steering_features(policy.policy_inputs(obs | {"states": -obs["states"]}))
    assert torch.equal(moved[:, -32:], words[0]), "a state in the prompt is no instruction"


def test_the_actor_reads_instruction_state_and_pictures():
    policy, obs = steered("pi0"), observe(cameras=2)
    before = policy.steering_features(policy.policy_inputs(obs))
    for change in (
        {"task_descriptions": TEXTS[::-1] * 2},
        {"states": -obs["states"]},
        {"main_images": 255 - obs["main_images"]},
        {"wrist_images": 255 - obs["wrist_images"]},
    ):
        after = policy.steering_features(policy.policy_inputs(obs | change))
        assert (after - before).abs().amax(1).min() > 1e-4, change.keys()


def test_the_model_is_not_run_where_only_the_actor_is_asked(monkeypatch):
    policy, obs = steered("smolvla"), observe(cameras=2)
    inputs = policy.policy_inputs(obs)
    monkeypatch.setattr(policy.network, "encode", None)
    policy("sac", forward_inputs=inputs, noise=torch.randn(4, 3))
    policy("sac_q", forward_inputs=inputs, actions=torch.randn(4, 2, 3))
    assert torch.equal(policy.predict_values(obs), torch.zeros(4, 1))


def test_actor_and_encoders_are_written_with_the_policy(tmp_path):
    policy, obs = steered("smolvla"), observe(cameras=2)
    policy.update_normalizer({"states": torch.randn(50, 5)})
    save_folder(policy, tmp_path)
    own = section("smolvla", model_path=str(tmp_path), hf_config={}, words=[], **DSRL)
    again = get_model(own | {"add_q_head": False}, SPEC)
    one, two = (p.predict_action_batch(obs, mode="eval")[0] for p in (policy, again))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    assert again.num_q_heads == 0
    with pytest.raises(ValueError, match=r"chooses the noise .*use_dsrl to true"):
        get_model(own | {"use_dsrl": False, "add_q_head": False}, SPEC)


def test_a_sharded_policy_computes_the_same():
    policy = steered("smolvla")
    inputs, noise = policy.policy_inputs(observe(cameras=2)), torch.randn(4, 3)
    actions = torch.randn(4, 2, 3)
    drawn = policy("sac", forward_inputs=inputs, noise=noise)
    values = policy("sac_q", forward_inputs=inputs, actions=actions)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for module in policy.modules():
            if type(module).__name__ in policy._no_split_modules:
                fully_shard(module, mesh=mesh)
        fully_shard(policy, mesh=mesh)
        again = policy("sac", forward_inputs=inputs, noise=noise)
        torch.testing.assert_close(again["actions"], drawn["actions"])
        after = policy("sac_q", forward_inputs=inputs, actions=actions)
        torch.testing.assert_close(after, values)
        (after.sum() + again["logprobs"].sum()).backward()
        assert trained(policy) == {"q_head", "steering_encoders", "steering"}
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dsrl": False}, "smolvla has Q-functions of its noise alone"),
        ({"add_value_head": True}, "add_value_head to false"),
        ({"rtc": {"delay": 1}}, "leave out rtc"),
    ],
)
def test_keys_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make("smolvla", **DSRL | changes)
