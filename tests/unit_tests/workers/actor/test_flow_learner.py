"""Policy losses on chains of denoising: agreement, and what an update does to them."""

from __future__ import annotations

import pytest
import torch

from tests.unit_tests.workers.actor.learning import (
    GRPO,
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

FLOW = {
    "actor.model.model_type": "flow_policy",
    "actor.model.num_action_chunks": 3,
    "actor.model.num_steps": 3,
    "env.train.max_episode_steps": 36,
}
VARIANTS = [
    {},
    {"actor.model.joint_logprob": True},
    {"actor.model.action_horizon": 5},
    {"actor.model.noise_method": "flow_noise"},
    {"actor.model.noise_method": "reinflow", "actor.model.joint_logprob": True},
]


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("method", [{}, GRPO])
def test_trainer_and_rollout_agree_step_by_step_of_the_chain(changes, method):
    learner = make_learner(make_cfg({**FLOW, **method, **changes}))
    batch = rollout(learner.engine.model, mid_chunk=True)
    gaps, _ = learner.agreement(batch)
    assert gaps["compared"] == 1.0 and gaps["logprob_max"] < 1e-4
    # A chain that is not the one that was stored would not agree.
    batch.forward_inputs["chain"] = batch.forward_inputs["chain"].roll(1, 1)
    assert learner.agreement(batch)[0]["logprob_max"] > 0.1


@pytest.mark.parametrize("changes", VARIANTS)
def test_better_chunks_become_likelier(changes):
    cfg = make_cfg({**FLOW, **GRPO, **changes, "algorithm.update_epoch": 4})
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


def test_micro_batches_change_nothing():
    found = []
    for size in (None, 8):
        learner = make_learner(make_cfg({**FLOW, "actor.micro_batch_size": size}))
        learn(learner, rollout(learner.engine.model))
        found.append(weights(learner))
    assert distance(*found) < 1e-5


def test_statistics_stay_those_of_the_beginning():
    learner = make_learner(make_cfg(FLOW))
    policy = learner.engine.model
    before = policy.normalizer.shift.clone()
    learn(learner, rollout(policy))
    assert torch.equal(policy.normalizer.shift, before)


def test_a_chunk_depends_on_its_noise_alone():
    policy = make_learner(make_cfg(FLOW)).engine.model
    states, noise = torch.randn(6, 5), torch.randn(6, policy.noise_width)
    whole, _ = policy.predict_action_batch({"states": states}, noise=noise)
    part, _ = policy.predict_action_batch({"states": states[2:4]}, noise=noise[2:4])
    torch.testing.assert_close(whole[2:4], part, rtol=0, atol=1e-6)
