"""A NaN stops the run, or is left out and counted."""

import math

import pytest
import torch

from tests.unit_tests.workers.actor.learning import (
    GRPO,
    columns,
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

SKIP = {"runner.on_nan": "skip"}


def test_a_reward_stops_the_run_with_env_and_step():
    learner = make_learner(make_cfg({"actor.model.num_action_chunks": 3}))
    batch = rollout(learner.engine.model)
    batch.rewards[4, 6, 1] = math.nan
    with pytest.raises(FloatingPointError, match="reward of env 106 in step 13 .* is nan.*on_nan"):
        learn(learner, batch)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_is_left_out_with_all_that_its_env_did(value):
    learner, other = make_learner(make_cfg(SKIP)), make_learner(make_cfg(SKIP))
    batch = rollout(learner.engine.model)
    without = columns(batch, [0, 1, 2, 4, 5, 6, 7])
    batch.rewards[4, 3] = value
    rollout_metrics, metrics = learn(learner, batch)
    expected, _ = learn(other, without)
    assert metrics["nan_skipped"] == 1 and metrics["actor/updates"] == 1
    assert all(math.isfinite(number) for number in metrics.values())
    assert rollout_metrics == pytest.approx(expected, rel=1e-5)
    assert distance(weights(learner), weights(other)) < 1e-6
    assert learner.engine.model.normalizer.count == 100 + 12 * 7
    assert "reward of env 103 in step 4" in learner.said[0]
    _, metrics = learn(learner, rollout(learner.engine.model, seed=5))
    assert metrics["nan_skipped"] == 1 and len(learner.said) == 1


def test_an_observation_that_the_rollout_reported_is_left_out_too():
    learner, other = make_learner(make_cfg(SKIP)), make_learner(make_cfg(SKIP))
    batch = rollout(learner.engine.model)
    without = columns(batch, [0, 1, 2, 3, 4, 5, 6])
    batch.finite[11, 7] = False
    _, metrics = learn(learner, batch)
    learn(other, without)
    assert metrics["nan_skipped"] == 1
    assert distance(weights(learner), weights(other)) < 1e-6


def test_a_group_that_lost_a_member_is_left_out():
    cfg = make_cfg({**GRPO, **SKIP})
    learner, other = make_learner(cfg), make_learner(cfg)
    batch = rollout(learner.engine.model)
    without = columns(batch, [4, 5, 6, 7])
    batch.rewards[4, 3] = math.nan
    _, metrics = learn(learner, batch)
    learn(other, without)
    assert metrics["nan_skipped"] == 4
    assert distance(weights(learner), weights(other)) < 1e-6


def test_with_nothing_left_no_update_is_made():
    learner = make_learner(make_cfg({**SKIP, "algorithm.normalize_returns": True}))
    before = weights(learner)
    batch = rollout(learner.engine.model)
    batch.rewards[:] = math.nan
    _, metrics = learn(learner, batch)
    assert metrics["actor/updates"] == 0 and metrics["nan_skipped"] == 8
    assert distance(before, weights(learner)) == 0.0
    assert learner.credit.scale.var < 2.0 and "no update was made" in learner.said[-1]


def test_a_gradient_stops_the_run_with_its_tensors():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    batch.forward_inputs["action"][2, 3] = math.nan
    with pytest.raises(FloatingPointError) as told:
        learn(learner, batch)
    words = str(told.value)
    assert "optimiser step 1" in words and "log_std" in words and "policy_head" in words
    assert "value_head" not in words and "runner.on_nan: skip" in words


def test_a_gradient_is_left_out_and_counted(monkeypatch):
    keys = {"actor.global_batch_size": 32, "algorithm.shuffle_rollout": False}
    learner = make_learner(make_cfg({**SKIP, **keys}))
    batch = rollout(learner.engine.model)
    # Samples are time first: four steps are a minibatch, and this is the second one.
    batch.forward_inputs["action"][5, 3] = math.nan
    seen = []
    step = learner.engine.step

    def record():
        result = step()
        seen.append(weights(learner))
        return result

    monkeypatch.setattr(learner.engine, "step", record)
    _, metrics = learn(learner, batch)
    assert metrics["actor/updates"] == 2 and metrics["actor/updates_not_finite"] == 1
    assert metrics["nan_skipped"] == 1 and learner.engine.steps == 2
    assert distance(seen[0], seen[1]) == 0.0 and distance(seen[1], seen[2]) > 0
    counts = {float(state["step"]) for state in learner.engine.optimizer.state.values()}
    assert counts == {2.0}
    assert all(math.isfinite(number) for number in metrics.values())
    assert all(torch.isfinite(tensor).all() for tensor in seen[2].values())
    assert "a gradient was not finite: 1" in learner.said[0]
