"""CrossQ against the same method written with torch's own modules."""

import pytest
import torch
from torch import nn

from rlinf.models.embodiment.q_heads import batch_renorm
from tests.unit_tests.workers.actor.off_policy.replaying import (
    CROSSQ,
    NoiseTable,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
)


def plain_critic(ensemble, head):
    """One Q-function; torch's batch normalisation counts the other way, and divides by n - 1."""
    layers = []
    norms = []
    for norm in ensemble.norms:
        own = nn.BatchNorm1d(norm.weight.shape[-1], eps=batch_renorm.EPSILON, momentum=0.01)
        own.weight.data = norm.weight[head, 0].detach().clone()
        own.bias.data = norm.bias[head, 0].detach().clone()
        own.running_mean = norm.mean[head, 0].clone()
        own.running_var = norm.var[head, 0].clone()
        norms.append(own)
    layers.append(norms[0])
    for layer, norm in zip([*ensemble.hidden, ensemble.head], [*norms[1:], None], strict=True):
        linear = nn.Linear(*layer.weight.shape[1:])
        linear.weight.data = layer.weight[head].detach().t().clone()
        linear.bias.data = layer.bias[head, 0].detach().clone()
        layers += [linear, *([nn.ReLU(), norm] if norm is not None else [])]
    return nn.Sequential(*layers)


def test_critic_steps_are_those_of_plain_torch():
    learner = make_off_policy(
        make_sac_cfg(
            {
                "algorithm.update_epoch": 3,
                # The critics alone.
                "algorithm.train_actor_steps": 1000,
                "actor.optim": {"lr": 1e-2, "weight_decay": 0.0, "clip_grad": None},
            },
            CROSSQ,
        )
    )
    assert learner.engine.reference is None
    policy = learner.engine.model
    rollout = replay_rollout(policy)
    learner.prepare(rollout, range(8))
    policy.update_normalizer(rollout.forward_inputs)
    learner._take_statistics = lambda: None
    critics = [plain_critic(policy.q_head, i) for i in range(2)]
    batches = [learner.replay.sample(16) for _ in range(3)]
    learner.replay.sample_batches = lambda count, size: iter(batches)
    learner._draw_noise, noise = NoiseTable(2), NoiseTable(2)
    alpha = learner.temperature.alpha
    learner.update()

    weights = [p for network in critics for p in network.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.0)
    for batch in batches:
        with torch.no_grad():
            drawn = policy.sac_forward(batch.next_obs, noise(16))
        now = torch.cat([policy.normalizer(batch.obs["states"]), batch.actions.flatten(1)], 1)
        then = policy.normalizer(batch.next_obs["states"])
        then = torch.cat([then, drawn["actions"].flatten(1)], 1)
        joint = torch.stack([q(torch.cat([now, then]))[:, 0] for q in critics])
        values, after = joint[:, :16], joint[:, 16:].detach()
        value = after.min(0).values - alpha * drawn["logprobs"]
        y = batch.rewards + batch.bootstrap * value
        optimizer.zero_grad()
        (0.5 * ((values - y) ** 2).mean(1).sum()).backward()
        optimizer.step()
    for head, critic in enumerate(critics):
        own = plain_critic(policy.q_head, head)
        for (name, a), (_, b) in zip(
            own.named_parameters(), critic.named_parameters(), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4, msg=name)
        for mine, theirs in zip(own, critic, strict=True):
            if isinstance(mine, nn.BatchNorm1d):
                torch.testing.assert_close(
                    mine.running_mean, theirs.running_mean, atol=1e-5, rtol=0
                )
    # The actor's step uses running statistics, and leaves them as they are.
    before = policy.q_head.norms[0].mean.clone()
    values = policy.sac_q_forward(batch.obs, batch.actions, frozen=True)
    assert torch.equal(policy.q_head.norms[0].mean, before)
    assert not values.requires_grad


@pytest.mark.parametrize("batches", [0, batch_renorm.WARM_UP])
def test_renormalisation_follows_its_formula(batches):
    torch.manual_seed(0)
    norm = batch_renorm.EnsembleBatchRenorm(2, 3)
    norm.batches.fill_(batches)
    norm.mean.copy_(torch.randn(2, 1, 3))
    norm.var.copy_(torch.rand(2, 1, 3) + 0.05)
    mean, var = norm.mean.clone(), norm.var.clone()
    x = torch.randn(2, 50, 3) * 4
    y = norm(x, learns=True)
    for q in range(2):
        for d in range(3):
            column = x[q, :, d]
            own_mean, own_var = column.mean(), ((column - column.mean()) ** 2).mean()
            s, running = (own_var + 1e-3) ** 0.5, (var[q, 0, d] + 1e-3) ** 0.5
            r, shift = 1.0, 0.0
            if batches:
                r = min(max(float(s / running), 1 / 3), 3.0)
                shift = min(max(float((own_mean - mean[q, 0, d]) / running), -5.0), 5.0)
            torch.testing.assert_close(y[q, :, d], (column - own_mean) / s * r + shift)
            expected = 0.99 * mean[q, 0, d] + 0.01 * own_mean
            torch.testing.assert_close(norm.mean[q, 0, d], expected)
    still = norm(x)
    torch.testing.assert_close(still, (x - norm.mean) / (norm.var + 1e-3).sqrt())
