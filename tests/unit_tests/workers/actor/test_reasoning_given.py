"""What other workers have computed for samples is used, and makes the update it would have made."""

import pytest
import torch

from rlinf.data.token_batch import TokenBatch
from tests.unit_tests.workers.actor.reasoning import (
    CRITIC,
    distance,
    learn,
    make_cfg,
    make_groups,
    make_learner,
    make_model,
    weights,
)

REFERENCE = {"algorithm.kl_beta": 0.1}
RECIPES = {
    "old": ("inference", {"algorithm.update_epoch": 2}),
    "old, one update": ("inference", {}),
    "reference": ("reference", REFERENCE),
    "reference in the reward": ("reference", {**REFERENCE, "algorithm.kl_in": "reward"}),
    "values": ("critic", CRITIC),
}
PLACE = "cluster.component_placement"


def place(component):
    return {PLACE: {"actor,rollout,reward": "0", component: "0"}}


def give(groups, learner, component):
    """Does what a group of workers would do, with the models of a learner that has them all."""
    for group in groups:
        batch = TokenBatch.of([group])
        name, numbers = {
            "inference": ("old_logprobs", learner._logprobs),
            "reference": ("ref_logprobs", learner._reference_logprobs),
            "critic": ("values", learner._values),
        }[component]
        parts = numbers(batch).split(batch.responses.tolist())
        for sample, part in zip(group.samples, parts, strict=True):
            setattr(sample, name, part.tolist())


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_update_is_that_of_an_actor_that_does_all_by_itself(recipe):
    component, changes = RECIPES[recipe]
    whole = make_learner(make_cfg(changes))
    # A critic elsewhere: the learner has none.
    cfg = make_cfg({**changes, **place(component)})
    lone = make_learner(cfg, with_critic=component != "critic")
    assert lone.engine.reference is None and (component != "critic" or lone.critic is None)
    for step in range(2):
        engine = make_model(whole.cfg.actor.model, seed=9)
        groups = make_groups(engine, seed=step, version=step)
        given = make_groups(engine, seed=step, version=step)
        give(given, whole, component)
        passes = []
        hook = lone.engine.model.register_forward_hook(
            lambda *_, passes=passes: passes.append(torch.is_grad_enabled())
        )
        learn(whole, groups)
        _, metrics = learn(lone, given)
        hook.remove()
        assert metrics["actor/updates"] > 0
        # Divergence in the reward needs old log-probabilities; otherwise all passes train.
        assert all(passes) or recipe == "reference in the reward"
    own, expected = weights(lone), weights(whole)
    assert distance(own, {name: expected[name] for name in own}) < 2e-5


def test_minibatches_can_be_streamed_when_others_keep_the_old_weights():
    changes = {"algorithm.n_minibatches": 2, "algorithm.shuffle_rollout": False}
    whole = make_learner(make_cfg(changes))
    there = {**changes, **place("inference"), "actor.stream_groups": 1}
    streamed = make_learner(make_cfg(there))
    for step in range(2):
        groups = make_groups(make_model(whole.cfg.actor.model, seed=9), seed=step, version=step)
        # With the weights before the update, which those of the actor are soon past.
        give(groups, whole, "inference")
        learn(whole, make_groups(make_model(whole.cfg.actor.model, seed=9), step, version=step))
        streamed.stream(iter(groups), len(groups))
    assert distance(weights(whole), weights(streamed)) < 2e-5


@pytest.mark.parametrize("recipe", ["old", "reference", "values"])
def test_samples_that_missed_their_workers_are_refused(recipe):
    component, changes = RECIPES[recipe]
    cfg = make_cfg({**changes, **place(component)})
    learner = make_learner(cfg, with_critic=component != "critic")
    with pytest.raises(ValueError, match=f"which the {component} workers add"):
        learner.prepare(make_groups(learner.engine.model))


def test_what_critic_workers_learn_from_has_returns():
    learner = make_learner(make_cfg(CRITIC))
    learner.prepare(make_groups(learner.engine.model))
    samples = learner.for_critic()
    assert samples.advantages is None and samples.returns is not None
    assert torch.equal(samples.old_values, learner._samples.old_values)


def test_the_policy_waits_for_a_critic_elsewhere():
    cfg = make_cfg({**CRITIC, **place("critic")})
    learner = make_learner(cfg, with_critic=False)
    groups = make_groups(learner.engine.model)
    give(groups, make_learner(make_cfg(CRITIC)), "critic")
    before = weights(learner)
    learner.prepare(groups)
    assert "actor/updates" not in learner.update(critic_first=True)
    assert distance(before, weights(learner)) == 0.0 and learner.version == 1
