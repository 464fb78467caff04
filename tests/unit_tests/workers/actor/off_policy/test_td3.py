"""TD3 against the same method written with torch's own modules."""

import copy

import pytest
import torch
from torch import nn

from rlinf.algorithms.off_policy.targets import smooth_actions
from rlinf.models import get_model
from tests.unit_tests.workers.actor.learning import SPEC
from tests.unit_tests.workers.actor.off_policy.replaying import (
    TD3,
    NoiseTable,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
)
from tests.unit_tests.workers.actor.off_policy.test_sac import head_network


def plain_actor(policy):
    layers = nn.Sequential()
    for layer in policy.policy_head.hidden:
        layers.extend([copy.deepcopy(layer), nn.ReLU()])
    layers.extend([copy.deepcopy(policy.policy_head.head), nn.Tanh()])
    return layers


def soft_update(slow, fast):
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        a.data.mul_(0.9).add_(b.data, alpha=0.1)


def test_gradient_steps_are_those_of_plain_torch():
    optim = {"lr": 1e-2, "weight_decay": 0.0, "clip_grad": None}
    cfg = make_sac_cfg(
        {
            "algorithm.update_epoch": 6,
            "algorithm.target_update_freq": 2,
            "algorithm.target_noise": 0.4,
            "actor.optim": optim,
        },
        TD3,
    )
    learner = make_off_policy(cfg)
    policy, target = learner.engine.model, learner.engine.reference
    rollout = replay_rollout(policy)
    learner.prepare(rollout, range(8))
    policy.update_normalizer(rollout.forward_inputs)
    learner._take_statistics = lambda: None
    normal = copy.deepcopy(policy.normalizer)
    actor, slow_actor = plain_actor(policy), plain_actor(target)
    critics = [head_network(policy.q_head, i) for i in range(2)]
    slow_critics = [head_network(target.q_head, i) for i in range(2)]
    batches = [learner.replay.sample(16) for _ in range(6)]
    learner.replay.sample_batches = lambda count, size: iter(batches)
    learner._draw_noise, noise = NoiseTable(2), NoiseTable(2)
    metrics = learner.update()

    of_critics = torch.optim.AdamW(
        [p for network in critics for p in network.parameters()], lr=1e-2, weight_decay=0.0
    )
    of_actor = torch.optim.AdamW(actor.parameters(), lr=1e-2, weight_decay=0.0)
    for number, batch in enumerate(batches, 1):
        states, after = normal(batch.obs["states"]), normal(batch.next_obs["states"])
        with torch.no_grad():
            # The range of the actions is -1 to 1.
            wobble = (0.4 * noise(16)).clamp(-0.5, 0.5)
            action = (slow_actor(after) + wobble).clamp(-1, 1)
            inputs = torch.cat([after, action], 1)
            value = torch.stack([q(inputs)[:, 0] for q in slow_critics]).min(0).values
            y = batch.rewards + batch.discounts * (~batch.terminations) * value
        inputs = torch.cat([states, batch.actions.flatten(1)], 1)
        loss = sum(0.5 * ((q(inputs)[:, 0] - y) ** 2).mean() for q in critics)
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        if number % 2 == 0:
            of_actor.zero_grad()
            (-critics[0](torch.cat([states, actor(states)], 1)).mean()).backward()
            of_actor.step()
            for slow, fast in zip([slow_actor, *slow_critics], [actor, *critics], strict=True):
                soft_update(slow, fast)

    for own, expected in (
        (plain_actor(policy), actor),
        (plain_actor(target), slow_actor),
        *((head_network(policy.q_head, i), critics[i]) for i in range(2)),
        *((head_network(target.q_head, i), slow_critics[i]) for i in range(2)),
    ):
        for a, b in zip(own.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=5e-5)
    assert metrics["td3/updates"] == metrics["critic/updates"] == 6
    assert metrics["actor/updates"] == 3


def test_noise_of_targets_is_clipped_twice():
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0])
    actions = torch.tensor([[[0.0, 2.0]], [[0.9, 3.9]]])
    noise = torch.tensor([[[0.1, -9.0]], [[0.3, 0.3]]])
    own = smooth_actions(actions, noise, 0.5, low, high)
    torch.testing.assert_close(own, torch.tensor([[[0.1, 1.0]], [[1.0, 4.0]]]))


def test_it_explores_with_noise_and_acts_without():
    cfg = make_sac_cfg({"actor.model.exploration_noise": 0.3}, TD3)
    policy = get_model(cfg.actor.model, SPEC, torch.float32)
    obs = {"states": torch.randn(4000, 5)}
    best = policy.predict_action_batch(obs, mode="eval")[0]
    torch.testing.assert_close(best.flatten(1), plain_actor(policy)(obs["states"]))
    policy.set_generator(torch.Generator().manual_seed(0))
    drawn, result = policy.predict_action_batch(obs)
    assert float(drawn.abs().max()) == 1.0
    inside = drawn.abs().amax(-1)[:, 0] < 1
    spread = (drawn - best)[inside & (best.abs().amax(-1)[:, 0] < 0.1)]
    assert float(spread.std()) == pytest.approx(0.3, rel=0.1)
    again = policy.default_forward(result["forward_inputs"])["logprobs"]
    torch.testing.assert_close(again, result["prev_logprobs"])


def test_what_it_cannot_train_is_refused():
    with pytest.raises(ValueError, match="leave out state_dependent_std"):
        make_off_policy(make_sac_cfg({"actor.model.state_dependent_std": True}, TD3))
