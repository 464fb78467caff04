"""The loss of chunks of actions in which episodes end anywhere, held to plain loops."""

import itertools

import pytest
import torch

from tests.unit_tests.algorithms.slow import surrogate
from tests.unit_tests.workers.actor.learning import (
    columns,
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

LEVELS = ("token_level", "action_level", "chunk_level")
ENTROPY = 0.1


def keys(chunk, reward="chunk_level", logprob="chunk_level", entropy="chunk_level"):
    return {
        "actor.model.num_action_chunks": chunk,
        "actor.model.value_type": reward,
        "algorithm.reward_type": reward,
        "algorithm.logprob_type": logprob,
        "algorithm.entropy_type": entropy,
        "algorithm.entropy_bonus": ENTROPY,
        "algorithm.value_clip": None,
        "algorithm.huber_delta": 1e6,
        "env.train.max_episode_steps": 12 * chunk,
    }


def stale(learner, chunk, seed=4):
    """A rollout whose probabilities are not those of the policy, so that ratios are not one."""
    batch = rollout(learner.engine.model, seed=seed, mid_chunk=True)
    g = torch.Generator().manual_seed(seed)
    batch.prev_logprobs += 0.1 * torch.randn(batch.prev_logprobs.shape, generator=g)
    if chunk > 1:
        assert not batch.valid.all()
    return batch


@torch.no_grad()
def slow_losses(learner, batch, credit, reward, logprob, entropy):
    """Means over what each part of the loss counts: tokens, actions or chunks."""
    steps, envs, chunk = batch.rewards.shape
    out = learner.engine.model.default_forward(
        {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()},
        compute_entropy=True,
        compute_values=True,
    )
    shape = (steps, envs, chunk, -1)
    now, spread = out["logprobs"].reshape(shape), out["entropy"].reshape(shape)
    old, value = batch.prev_logprobs.reshape(shape), out["values"].reshape(steps, envs, -1)

    def units(t, env, level):
        """Entries of a chunk at a level: each a list of (action, dimension)."""
        actions = [c for c in range(chunk) if batch.valid[t, env, c]]
        pairs = [[(c, a) for a in range(now.shape[-1])] for c in actions]
        if level == "token_level":
            return [[pair] for action in pairs for pair in action]
        return pairs if level == "action_level" else [sum(pairs, [])] if pairs else []

    policy, bonus, critic = [], [], []
    for t, env in itertools.product(range(steps), range(envs)):
        # A ratio of a chunk meets each action's advantage, if these have advantages of their own.
        finer = logprob == "chunk_level" and reward == "action_level"
        for unit in units(t, env, "action_level" if finer else logprob):
            of_ratio = units(t, env, "chunk_level")[0] if finer else unit
            new = sum(float(now[t, env, c, a]) for c, a in of_ratio)
            before = sum(float(old[t, env, c, a]) for c, a in of_ratio)
            where = unit[0][0] if reward == "action_level" else 0
            policy.append(surrogate(new, before, float(credit.advantages[t, env, where])))
        for unit in units(t, env, entropy):
            bonus.append(sum(float(spread[t, env, c, a]) for c, a in unit))
        for unit in units(t, env, reward):
            where = unit[0][0] if reward == "action_level" else 0
            error = float(value[t, env, where] - credit.returns[t, env, where])
            critic.append(0.5 * error**2)
    return [sum(part) / len(part) for part in (policy, critic, bonus)]


@pytest.mark.parametrize("reward", ["chunk_level", "action_level"])
@pytest.mark.parametrize("logprob", LEVELS)
@pytest.mark.parametrize("entropy", LEVELS)
def test_every_level_counts_what_was_carried_out(reward, logprob, entropy):
    for chunk in (1, 4):
        learner = make_learner(make_cfg(keys(chunk, reward, logprob, entropy)))
        batch = stale(learner, chunk)
        learner.prepare(batch, range(8))
        credit = learner._prepared[1]
        expected = slow_losses(learner, batch, credit, reward, logprob, entropy)
        metrics = learner.update()
        names = ("actor/policy_loss", "critic/value_loss", "actor/entropy")
        assert [metrics[name] for name in names] == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
def test_losses_of_chunks_of_any_size(chunk):
    learner = make_learner(make_cfg(keys(chunk)))
    batch = stale(learner, chunk, seed=chunk)
    learner.prepare(batch, range(8))
    levels = ("chunk_level",) * 3
    expected = slow_losses(learner, batch, learner._prepared[1], *levels)
    metrics = learner.update()
    names = ("actor/policy_loss", "critic/value_loss", "actor/entropy")
    assert [metrics[name] for name in names] == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("reward", "logprob"), list(itertools.product(["chunk_level", "action_level"], LEVELS))
)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_what_was_never_carried_out_does_not_matter(reward, logprob, mode):
    cfg = make_cfg(keys(4, reward, logprob) | {"algorithm.loss_agg_func": mode})
    learner, other = make_learner(cfg), make_learner(cfg)
    batch = stale(learner, 4)
    changed = columns(batch, slice(None))
    idle = ~batch.valid
    changed.forward_inputs["action"].unflatten(-1, (4, 2))[idle] = 50.0
    changed.prev_logprobs.unflatten(-1, (4, 2))[idle] = -7.0
    changed.rewards[idle] = 1e3
    if reward == "action_level":
        changed.prev_values[:-1][idle] = -1e3
    learn(learner, batch), learn(other, changed)
    assert distance(weights(learner), weights(other)) < 1e-6


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("logprob", LEVELS)
def test_micro_batches_of_chunks_change_nothing(mode, logprob):
    results = []
    for micro in (None, 8):
        own = {"algorithm.loss_agg_func": mode, "actor.micro_batch_size": micro}
        learner = make_learner(make_cfg(keys(3, logprob=logprob, entropy="token_level") | own))
        for seed in range(2):
            learn(learner, rollout(learner.engine.model, seed=seed, mid_chunk=True))
        results.append(weights(learner))
    assert distance(*results) < 1e-5
