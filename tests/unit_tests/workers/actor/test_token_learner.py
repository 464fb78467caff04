"""Policy losses on tokens of plans of which only a part is carried out."""

from __future__ import annotations

import pytest
import torch

from tests.unit_tests.models.openvla.policies import section
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

CHUNK, HORIZON = 3, 5


def changes(kind, **keys):
    words = ["open", "it"]
    model = section(kind, words=words, num_action_chunks=CHUNK, action_horizon=HORIZON, **keys)
    return {"actor.model": model, "env.train.max_episode_steps": 12 * CHUNK}


def by_action(kind):
    levels = {"reward_type": "action_level", "logprob_type": "token_level"}
    return changes(kind, add_value_head=True, value_type="action_level") | {
        f"algorithm.{key}": value for key, value in levels.items()
    }


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
@pytest.mark.parametrize("level", ["chunk", "action"])
def test_rollout_and_learner_agree_on_what_is_carried_out(kind, level):
    keys = by_action(kind) if level == "action" else changes(kind, add_value_head=True)
    learner = make_learner(make_cfg(keys))
    batch = rollout(learner.engine.model, mid_chunk=True)
    assert batch.forward_inputs["action"].shape[-1] == CHUNK * 2
    assert batch.prev_values.shape[-1] == (CHUNK if level == "action" else 1)
    gaps, _ = learner.agreement(batch)
    assert gaps["compared"] == 1.0
    assert gaps["logprob_max"] < 1e-4 and gaps["value_max"] < 1e-4
    before = weights(learner)
    learn(learner, batch)
    assert distance(before, weights(learner)) > 0


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
def test_better_chunks_become_likelier(kind):
    cfg = make_cfg(changes(kind) | GRPO | {"algorithm.update_epoch": 4})
    learner = make_learner(cfg)
    policy = learner.engine.model
    batch = rollout(policy)
    # Of each group of four, half did well.
    batch.rewards.zero_()
    batch.terminations.zero_()
    batch.valid.fill_(True)
    batch.rewards[-1, ::2, -1] = 1.0
    learn(learner, batch)
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    after = policy(forward_inputs=inputs)["logprobs"].detach().view_as(batch.prev_logprobs)
    gain = (after - batch.prev_logprobs).sum(-1)
    assert float(gain[:, ::2].mean()) > float(gain[:, 1::2].mean())


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
def test_what_follows_the_end_of_an_episode_is_not_trained_on(kind):
    """Other tokens in the place of those that were not carried out change no gradient."""
    found = []
    for redraws in (False, True):
        learner = make_learner(make_cfg(by_action(kind)))
        batch = rollout(learner.engine.model, mid_chunk=True)
        idle = ~batch.valid.repeat_interleave(2, -1)
        assert idle.any()
        if redraws:
            tokens = batch.forward_inputs["action"]
            tokens[idle] = (tokens[idle] + 5) % 16
            batch.prev_logprobs[idle] += torch.randn(int(idle.sum()))
        learn(learner, batch)
        found.append(weights(learner))
    assert distance(*found) < 1e-6
