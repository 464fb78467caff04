"""Policies with an action expert learn from demonstrations and rewards, as flow policies do."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.workers.actor.imitation.cloning_learner import BehaviourCloningLearner
from tests.unit_tests.data.demonstrations.datasets import write_dataset
from tests.unit_tests.models.flow_vla.policies import KINDS, section
from tests.unit_tests.workers.actor.imitation.test_cloning import make_learner as make_cloner
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)


def model(kind, **keys):
    return {"actor.model": section(kind, num_images_in_input=0, num_action_chunks=3, **keys)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_rollout_and_learner_agree_and_an_update_changes_the_policy(kind, method):
    changes = model(kind, add_value_head=True) | {"env.train.max_episode_steps": 36}
    if method == "grpo":
        changes |= GRPO | {"algorithm.update_epoch": 2}
    learner = make_learner(make_cfg(changes))
    policy = learner.engine.model
    batch = rollout(policy, mid_chunk=True)
    gaps, _ = learner.agreement(batch)
    assert gaps["compared"] == 1.0 and gaps["logprob_max"] < 1e-4
    # A chain that is not the one that was stored would not agree.
    chain = batch.forward_inputs["chain"]
    batch.forward_inputs["chain"] = chain.roll(1, 1)
    assert learner.agreement(batch)[0]["logprob_max"] > 0.1
    batch.forward_inputs["chain"] = chain
    # Of each group of four, half did well.
    batch.rewards.zero_()
    batch.terminations.zero_()
    batch.valid.fill_(True)
    batch.rewards[-1, ::2, -1] = 1.0
    learn(learner, batch)
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    after = policy(forward_inputs=inputs)["logprobs"].detach().view_as(batch.prev_logprobs)
    gain = (after - batch.prev_logprobs).sum(-1)
    if method == "grpo":
        assert float(gain[:, ::2].mean()) > float(gain[:, 1::2].mean())
    else:
        assert float(gain.abs().max()) > 1e-3


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Episodes whose actions follow from the states."""
    return write_dataset(
        tmp_path_factory.mktemp("demos") / "d",
        (9, 12, 7),
        act=lambda s: np.clip([0.8 * s[0], -0.5 * s[1]], -1, 1),
    )


def supervised(kind, **keys):
    return {
        **model(kind, words=["do", "it"], action_horizon=4, **keys),
        "runner.task_type": "sft",
        "runner.local_update_steps": 8,
        "actor.global_batch_size": 28,
        "actor.optim.lr": 3e-3,
        "actor.optim.lr_scheduler": "constant",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_demonstrations_are_learned_from(kind, demos):
    learner = make_cloner(demos, supervised(kind))
    losses = [learner.update()["actor/loss"] for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("kind", ["smolvla", "gr00t"])
def test_no_rank_builds_the_whole_of_what_learns_from_demonstrations(kind, demos):
    changes = supervised(kind) | {"runner.local_update_steps": 2}
    built = []

    class Noted(BehaviourCloningLearner):
        def policy_engine(self, model, **options):
            built.append({parameter.device.type for parameter in model.parameters()})
            return super().policy_engine(model, **options)

    found = []
    for deferred in (None, False):
        learner = make_cloner(demos, changes, deferred=deferred, kind=Noted)
        metrics = learner.update()
        found.append((metrics, weights(learner), learner.held_out_loss()))
    assert built == [{"meta"}, {"cpu"}]
    assert found[0][0] == found[1][0] and found[0][2] == found[1][2]
    assert distance(found[0][1], found[1][1]) == 0.0
