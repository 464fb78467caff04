"""Decoupled PPO: clipped around the policy before the update, not around the one that acted."""

import copy

import pytest
import torch

from tests.unit_tests.workers.actor.learning import (
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

DECOUPLED = {"algorithm.loss_type": "decoupled_actor_critic"}


@pytest.mark.parametrize("recompute", [True, False])
def test_on_policy_it_is_actor_critic(recompute):
    keys = {"algorithm.update_epoch": 3, "actor.global_batch_size": 32}
    decoupled = make_cfg({**keys, **DECOUPLED, "algorithm.recompute_logprobs": recompute})
    learner, plain = make_learner(decoupled), make_learner(make_cfg(keys))
    for step in range(2):
        batch = rollout(learner.engine.model, seed=step)
        batch.versions[:] = learner.version
        _, metrics = learn(learner, batch)
        learn(plain, copy.deepcopy(batch))
        assert metrics["actor/policy_age"] == 0
        assert metrics["actor/behave_weight"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["actor/behave_clip_fraction"] == 0
    assert distance(weights(learner), weights(plain)) < 1e-4


def test_the_proximal_policy_is_the_one_before_the_update():
    learner = make_learner(make_cfg({**DECOUPLED, "algorithm.behave_weight_threshold": None}))
    old = copy.deepcopy(learner.engine.model)
    learn(learner, rollout(old, seed=1))
    learn(learner, rollout(learner.engine.model, seed=2))
    batch = rollout(old, seed=3)
    with torch.no_grad():
        now = learner.engine.model.default_forward(batch.forward_inputs)["logprobs"].sum(-1)
    weight = (now - batch.prev_logprobs.sum(-1)).exp()
    _, metrics = learn(learner, batch)
    # It was made by version 0, and this update makes version 3 out of version 2.
    assert metrics["actor/policy_age"] == 2
    assert metrics["actor/behave_weight"] == pytest.approx(float(weight.mean()), rel=1e-4)
    # In the first optimiser step the policy is still the proximal one.
    assert metrics["actor/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["actor/approx_kl"] == pytest.approx(0.0, abs=1e-5)
    assert float((weight - 1).abs().max()) > 0.05


def test_samples_from_too_far_away_are_dropped():
    bound = 1.05
    learner = make_learner(make_cfg({**DECOUPLED, "algorithm.behave_weight_threshold": bound}))
    old = copy.deepcopy(learner.engine.model)
    learn(learner, rollout(old, seed=1))
    batch = rollout(old, seed=3)
    with torch.no_grad():
        now = learner.engine.model.default_forward(batch.forward_inputs)["logprobs"].sum(-1)
    dropped = (now - batch.prev_logprobs.sum(-1)).exp() > bound
    assert 0 < dropped.float().mean() < 1
    _, metrics = learn(learner, batch)
    assert metrics["actor/behave_clip_fraction"] == pytest.approx(float(dropped.float().mean()))
