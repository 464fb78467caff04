"""Rollouts that end early: what was played counts as if it had been handed over by itself."""

from dataclasses import fields

import pytest
import torch

from rlinf.data.embodied import (
    EmbodiedBatch,
    EnvTrajectory,
    FinalObservations,
    PolicyTrajectory,
)
from rlinf.data.partial_rollouts import fill_front, merge_filled
from tests.unit_tests.workers.actor.learning import learn, make_cfg, make_learner, rollout

STEPS, SHORT = 12, 5
CHUNKS = {"actor.model.num_action_chunks": 2}


def halves(batch):
    """Return the parts of a batch that env and policy hand over."""
    return tuple(
        kind(**{field.name: getattr(batch, field.name) for field in fields(kind)})
        for kind in (EnvTrajectory, PolicyTrajectory)
    )


def joined(*batches):
    env, policy = zip(*map(halves, batches), strict=True)
    return EmbodiedBatch.join([merge_filled(env, STEPS)], [merge_filled(policy, STEPS)])


def make(changes=None):
    learner = make_learner(make_cfg({**CHUNKS, **(changes or {})}))
    policy = learner.engine.model
    whole = rollout(policy, STEPS, envs=4, seed=1)
    short = rollout(policy, SHORT, envs=3, seed=2)
    short.begins[0, 1] = True
    return learner, whole, short


def gae(rewards, values, dones, gamma, lam):
    """Generalised advantages of one env, action by action, slowly."""
    advantages, following = [], 0.0
    for t in reversed(range(len(rewards))):
        alive = 0.0 if dones[t] else 1.0
        delta = rewards[t] + gamma * alive * values[t + 1] - values[t]
        following = delta + gamma * lam * alive * following
        advantages.insert(0, following)
    return advantages


def test_advantages_look_ahead_to_the_value_at_the_cut():
    learner, whole, short = make(
        {
            "algorithm.normalize_advantages": False,
            "algorithm.reward_type": "chunk_level",
            "algorithm.discount_per": "chunk",
        }
    )
    algorithm = learner.cfg.algorithm
    credit = learner.credit.assign(joined(whole, short), range(7))
    for env in range(3):
        expected = gae(
            short.rewards[:, env].sum(-1).tolist(),
            short.prev_values[:, env, 0].tolist(),
            short.terminations[:, env].any(-1).tolist(),
            algorithm.gamma,
            algorithm.gae_lambda,
        )
        found = credit.advantages[STEPS - SHORT :, 4 + env, 0]
        assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert not credit.mask[: STEPS - SHORT, 4:].any()


@pytest.mark.parametrize("normalize", [False, True])
def test_credit_is_that_of_the_parts(normalize):
    own = {"algorithm.normalize_advantages": False, "algorithm.normalize_returns": normalize}
    learner, whole, short = make(own)
    parts = []
    for part in (whole, short):
        alone, _, _ = make(own)
        parts.append(alone.credit.assign(part, range(part.rewards.shape[1])))
    both = learner.credit.assign(joined(whole, short), range(7))
    if not normalize:
        torch.testing.assert_close(both.advantages[:, :4], parts[0].advantages)
        torch.testing.assert_close(both.advantages[-SHORT:, 4:], parts[1].advantages)
        torch.testing.assert_close(both.returns[-SHORT:, 4:], parts[1].returns)
    torch.testing.assert_close(both.mask[-SHORT:, 4:], parts[1].mask)
    played = [float(part.valid.sum()) for part in (whole, short)]
    mean = sum(n * part.metrics["rewards"] for n, part in zip(played, parts, strict=True))
    assert both.metrics["rewards"] == pytest.approx(mean / sum(played), abs=1e-6)


def test_an_update_counts_what_was_played_alone():
    """What stands in for steps that were not made changes nothing."""
    results = []
    for noise in (0.0, 7.0):
        learner, whole, short = make({"algorithm.update_epoch": 1})
        batch = joined(whole, short)
        lacking = slice(0, STEPS - SHORT), slice(4, 7)
        batch.forward_inputs["states"][lacking] += noise
        batch.rewards[lacking] += noise
        batch.prev_logprobs[lacking] += noise
        metrics = learn(learner, batch)
        assert metrics[1]["actor/updates"] > 0
        results.append({name: t.clone() for name, t in learner.engine.full_tensors()})
    for name, tensor in results[0].items():
        torch.testing.assert_close(results[1][name], tensor)


def test_what_lacks_is_not_valid_and_ends_keep_their_steps():
    _, _, short = make()
    env, policy = halves(short)
    policy.final = FinalObservations(
        torch.tensor([0, 4]), torch.tensor([1, 2]), {"states": torch.randn(2, 5)}
    )
    lacking = STEPS - SHORT
    filled = fill_front(env, STEPS)
    assert filled.valid.shape[0] == STEPS and not filled.valid[:lacking].any()
    assert torch.equal(filled.valid[lacking:], env.valid)
    assert filled.begins[0].tolist() == filled.begins[lacking].tolist() == [False, True, False]
    assert not filled.begins[1:lacking].any()
    longer = fill_front(policy, STEPS)
    assert longer.final.steps.tolist() == [lacking, lacking + 4]
    assert len(longer.prev_values) == STEPS + 1
    assert torch.equal(longer.prev_values[-1], policy.prev_values[-1])
    assert fill_front(env, SHORT) is env
