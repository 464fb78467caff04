"""SAC against the same method written with torch's own modules, sample by sample."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.off_policy.sac import SACLearner
from tests.unit_tests.workers.actor.learning import make_cfg, make_policy
from tests.unit_tests.workers.actor.off_policy.replaying import (
    CHOICES,
    OF_CHOICES,
    NoiseTable,
    feed,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
    weights_of,
)

GAMMA = 0.9


def head_network(ensemble, head):
    """One Q-function of an ensemble as a plain network."""
    layers = []
    for layer in [*ensemble.hidden, ensemble.head]:
        linear = nn.Linear(*layer.weight.shape[1:])
        linear.weight.data = layer.weight[head].detach().t().clone()
        linear.bias.data = layer.bias[head, 0].detach().clone()
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PlainSAC:
    """Policy and Q-functions of a learner, in plain torch."""

    def __init__(self, learner):
        policy, target = learner.engine.model, learner.engine.reference
        self.normal = copy.deepcopy(policy.normalizer)
        self.actor = nn.Sequential()
        for layer in policy.policy_head.hidden:
            self.actor.extend([copy.deepcopy(layer), nn.ReLU()])
        self.actor.append(copy.deepcopy(policy.policy_head.head))
        self.critics = [head_network(policy.q_head, i) for i in range(policy.num_q_heads)]
        self.targets = [head_network(target.q_head, i) for i in range(policy.num_q_heads)]
        self.log_alpha = nn.Parameter(learner.temperature.alpha.log().clone())

    def act(self, states, noise):
        mean, log_std = self.actor(self.normal(states)).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        base = Normal(mean, log_std.exp())
        squashed = TransformedDistribution(base, [TanhTransform(cache_size=1)])
        action = (mean + log_std.exp() * noise).tanh()
        return action, squashed.log_prob(action.clamp(-1 + 1e-6, 1 - 1e-6)).sum(-1)

    def q(self, networks, states, actions):
        inputs = torch.cat([self.normal(states), actions.flatten(1)], -1)
        return torch.stack([network(inputs).squeeze(-1) for network in networks])


def slow_transition(batch, step, env, rows):
    """Rewards, discount and next state of up to so many rows, action by action."""
    total, factor = 0.0, 1.0
    states, final = batch.forward_inputs["states"], batch.final
    for _ in range(rows):
        for action in range(batch.rewards.shape[2]):
            if not batch.valid[step, env, action]:
                continue
            total += factor * float(batch.rewards[step, env, action])
            factor *= GAMMA
            if batch.terminations[step, env, action]:
                return total, 0.0, torch.zeros(5)
            if batch.truncations[step, env, action]:
                (place,) = ((final.steps == step) & (final.envs == env)).nonzero().flatten()
                return total, factor, final.obs["states"][place]
        step += 1
        ends = (batch.terminations | batch.truncations)[step, env].any()
        if step == len(batch.rewards) - 1 and not ends:
            # This row cannot be drawn yet: its next observation is not known.
            break
    return total, factor, states[step, env]


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("n_step", [1, 3])
def test_targets_with_chunks_and_ends_of_episodes(chunk, n_step):
    cfg = make_sac_cfg(
        {
            "algorithm.replay_buffer": {"cache_size": 500, "n_step": n_step},
            "actor.model.num_action_chunks": chunk,
        }
    )
    learner = make_off_policy(cfg)
    batch = replay_rollout(learner.engine.model)
    learner.prepare(batch, range(8))
    drawn = learner.replay.sample(64)
    noise = torch.randn(64, 2 * chunk)
    learner._draw_noise = lambda count: noise
    learner._alpha = learner.temperature.alpha
    ours = learner._targets(drawn)
    plain = PlainSAC(learner)
    seen = set()
    for i, serial in enumerate(drawn.indices.tolist()):
        step, env = divmod(serial, 8)
        rewards, discount, after = slow_transition(batch, step, env, n_step)
        action, logprob = plain.act(after[None], noise[i : i + 1])
        value = plain.q(plain.targets, after[None], action).min(0).values - 0.3 * logprob
        expected = rewards + discount * float(value.detach())
        assert float(ours[i]) == pytest.approx(expected, abs=2e-4)
        seen.add((bool(drawn.terminations[i]), bool(drawn.truncations[i])))
    assert seen == {(False, False), (True, False), (False, True)}


def test_gradient_steps_are_those_of_plain_torch():
    cfg = make_sac_cfg(
        {
            "algorithm.update_epoch": 5,
            "actor.optim": {"lr": 1e-2, "weight_decay": 0.0, "clip_grad": None},
            "actor.critic_optim": {"lr": 3e-3, "weight_decay": 0.0, "clip_grad": 0.5},
        }
    )
    learner = make_off_policy(cfg)
    rollout = replay_rollout(learner.engine.model)
    learner.prepare(rollout, range(8))
    # The statistics of observations change before the first step.
    learner.engine.model.update_normalizer(rollout.forward_inputs)
    learner._take_statistics = lambda: None
    plain = PlainSAC(learner)
    batches = [learner.replay.sample(16) for _ in range(5)]
    learner.replay.sample_batches = lambda count, size: iter(batches)
    learner._draw_noise, noise = NoiseTable(2), NoiseTable(2)
    metrics = learner.update()

    critic_weights = [p for network in plain.critics for p in network.parameters()]
    of_critic = torch.optim.AdamW(critic_weights, lr=3e-3, weight_decay=0.0)
    of_actor = torch.optim.AdamW(plain.actor.parameters(), lr=1e-2, weight_decay=0.0)
    of_alpha = torch.optim.Adam([plain.log_alpha], lr=3e-4)
    losses = []
    for batch in batches:
        alpha = plain.log_alpha.exp().detach()
        states, after = batch.obs["states"], batch.next_obs["states"]
        with torch.no_grad():
            action, logprob = plain.act(after, noise(16))
            value = plain.q(plain.targets, after, action).min(0).values - alpha * logprob
            target = batch.rewards + batch.discounts * (~batch.terminations) * value
        values = plain.q(plain.critics, states, batch.actions)
        loss = 0.5 * ((values - target) ** 2).mean(1).sum()
        losses.append(loss.item())
        of_critic.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(critic_weights, 0.5)
        of_critic.step()
        action, logprob = plain.act(states, noise(16))
        value = plain.q(plain.critics, states, action).min(0).values
        of_actor.zero_grad()
        (alpha * logprob - value).mean().backward()
        of_actor.step()
        of_alpha.zero_grad()
        (plain.log_alpha.exp() * -(logprob.detach().mean() - 2.0)).backward()
        of_alpha.step()
        for slow, fast in zip(plain.targets, plain.critics, strict=True):
            for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
                a.data.mul_(0.9).add_(b.data, alpha=0.1)

    policy, target = learner.engine.model, learner.engine.reference
    for own, network in (
        *((head_network(policy.q_head, i), plain.critics[i]) for i in range(2)),
        *((head_network(target.q_head, i), plain.targets[i]) for i in range(2)),
    ):
        for a, b in zip(own.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)
    actor = [p for _, p in sorted(policy.policy_head.named_parameters())]
    expected = [*plain.actor[-1].parameters()][::-1]
    torch.testing.assert_close(actor[:2], expected, rtol=1e-3, atol=5e-5)
    torch.testing.assert_close(
        learner.temperature.alpha, plain.log_alpha.exp().detach(), rtol=1e-4, atol=1e-6
    )
    assert metrics["sac/critic_loss"] == pytest.approx(sum(losses) / 5, rel=1e-3)
    assert metrics["sac/updates"] == metrics["actor/updates"] == metrics["critic/updates"] == 5
    assert metrics["sac/update_ratio"] == pytest.approx(5 / rollout.valid.sum().item())


def test_micro_batches_do_not_change_the_step():
    results = []
    for size in (None, 4):
        learner = make_off_policy(make_sac_cfg({"actor.micro_batch_size": size}))
        learner._draw_noise = NoiseTable(2)
        metrics = feed(learner, replay_rollout(learner.engine.model))
        results.append((metrics, weights_of(learner)))
    (whole, expected), (cut, own) = results
    for name, tensor in expected.items():
        torch.testing.assert_close(own[name], tensor, rtol=1e-4, atol=1e-6)
    assert cut == pytest.approx(whole, rel=1e-4)


def test_the_actor_learns_less_often_and_later():
    cfg = make_sac_cfg(
        {
            "algorithm.update_epoch": 6,
            "algorithm.critic_actor_ratio": 4,
            "algorithm.train_actor_steps": 100,
            "algorithm.target_update_freq": 3,
        }
    )
    learner = make_off_policy(cfg)
    followed = []
    learner._target.follow = lambda: followed.append(learner.gradient_steps)
    first = feed(learner, replay_rollout(learner.engine.model))
    assert first["critic/updates"] == 6 and "actor/updates" not in first
    second = feed(learner, replay_rollout(learner.engine.model, seed=1))
    # Gradient steps 8 and 12.
    assert second["critic/updates"] == 6 and second["actor/updates"] == 2
    assert followed == [3, 6, 9, 12]
    assert second["gradient_updates"] == 12


def test_nothing_is_learned_before_the_buffer_has_enough():
    learner = make_off_policy(
        make_sac_cfg({"algorithm.replay_buffer": {"cache_size": 500, "min_buffer_size": 150}})
    )
    before = weights_of(learner)
    first = feed(learner, replay_rollout(learner.engine.model))
    assert first["sac/updates"] == 0 and first["replay_buffer/total_samples"] == 96
    after = weights_of(learner)
    assert all(torch.equal(after[k], before[k]) for k in before if "normalizer" not in k)
    # It acts with the statistics of what it has seen.
    assert not torch.equal(after["normalizer.shift"], before["normalizer.shift"])
    second = feed(learner, replay_rollout(learner.engine.model, seed=1))
    assert second["sac/updates"] == 2 and learner.version == 2


def test_a_fixed_temperature_stays():
    tuning = {"alpha_type": "fixed_alpha", "initial_alpha": 0.17}
    learner = make_off_policy(make_sac_cfg({"algorithm.entropy_tuning": tuning}))
    metrics = feed(learner, replay_rollout(learner.engine.model))
    assert metrics["sac/alpha"] == pytest.approx(0.17)
    assert float(learner.temperature.alpha) == pytest.approx(0.17)


@pytest.mark.parametrize("chunk", [1, 2])
def test_choices_have_exact_targets(chunk):
    cfg = make_sac_cfg({"actor.model.num_action_chunks": chunk}, OF_CHOICES)
    learner = make_off_policy(cfg, CHOICES)
    policy, target = learner.engine.model, learner.engine.reference
    batch = replay_rollout(policy, choices=True)
    learner.prepare(batch, range(8))
    drawn = learner.replay.sample(32)
    learner._alpha = learner.temperature.alpha
    ours = learner._targets(drawn)
    features = policy.normalizer(drawn.next_obs["states"])
    counts = [3, 2] * chunk
    logits = policy.policy_head(features).split(counts, -1)
    q = target.q_head(features).view(2, 32, 2 * chunk, 3).min(0).values
    value = torch.zeros(32)
    for d, count in enumerate(counts):
        logp = logits[d].log_softmax(-1)
        value += (logp.exp() * (q[:, d, :count] - 0.3 * logp)).sum(-1)
    expected = drawn.rewards + drawn.bootstrap * value
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    # Values of what was done.
    values = policy.sac_q_forward(drawn.obs)
    chosen = learner._of_actions(values, drawn.actions)
    for i in range(32):
        at = (drawn.actions[i] - torch.tensor([1, 0])).flatten()
        slow = sum(values[:, i, d, at[d]] for d in range(2 * chunk))
        torch.testing.assert_close(chosen[:, i], slow)
    assert learner.temperature.target_entropy == pytest.approx(0.5 * chunk * math.log(6))
    assert feed(learner, batch)["sac/updates"] == 2


def test_what_it_cannot_train_is_refused():
    with pytest.raises(ValueError, match=r"set actor\.model\.distribution to squashed_gaussian"):
        make_off_policy(make_sac_cfg({"actor.model.distribution": "auto"}))
    with pytest.raises(ValueError, match=r"set actor\.model\.add_q_head to true"):
        SACLearner(make_sac_cfg(), make_policy(make_cfg()), LearnerPlace(torch.device("cpu")))
