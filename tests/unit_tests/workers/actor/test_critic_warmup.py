"""While the critic learns alone, the policy stays as it is, to the last bit."""

from __future__ import annotations

import copy

import pytest
import torch

from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.models import get_model
from rlinf.models.embodiment.mlp_policy import MLPPolicy
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace
from tests.unit_tests.models.flow_vla import policies as flow
from tests.unit_tests.models.openvla import policies as tokens
from tests.unit_tests.workers.actor import reasoning
from tests.unit_tests.workers.actor.learning import (
    SPEC,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

SHARED = {
    "actor.model.share_trunk": True,
    # What has no gradient would be decayed, if it took part in a step.
    "actor.optim": {"lr": 1e-2, "weight_decay": 0.1},
    "algorithm.critic_warmup_steps": 2,
}
KEYS = {"num_images_in_input": 0, "num_action_chunks": 3, "add_value_head": True}
VLA = {
    "openvla_oft": tokens.section(**KEYS),
    "smolvla": flow.section("smolvla", **KEYS),
    "gr00t": flow.section("gr00t", **KEYS, value_source="expert"),
}


def judged(learner, batch):
    """Log-probabilities and values of a rollout by the policy as it is now."""
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    out = learner.engine.infer(forward_inputs=inputs, compute_values=True)
    return out["logprobs"].clone(), out["values"].clone()


def moved(learner, before):
    return {name for name, own in weights(learner).items() if not torch.equal(own, before[name])}


def assert_the_critic_goes_first(learner, warmup=2, **sizes):
    """Update on a rollout per step of the warm-up, and on one more."""
    policy = learner.engine.model
    start = weights(learner)
    probe = rollout(policy, seed=9, **sizes)
    logprobs, values = judged(learner, probe)
    for step in range(warmup):
        batch = rollout(policy, seed=step, **sizes)
        metrics = learn(learner, batch)[1]
        assert metrics["actor/updates"] == 1 and metrics["critic/value_loss"] > 0
        assert "actor/policy_loss" not in metrics
        now = judged(learner, probe)
        assert torch.equal(now[0], logprobs) and not torch.equal(now[1], values)
        values = now[1]
    of_critic = moved(learner, start)
    assert of_critic and all(policy.is_value_parameter(name) for name in of_critic)
    metrics = learn(learner, rollout(policy, seed=warmup, **sizes))[1]
    assert "actor/policy_loss" in metrics
    now = judged(learner, probe)
    assert not torch.equal(now[0], logprobs) and not torch.equal(now[1], values)
    return start


@pytest.mark.parametrize("loss", ["actor_critic", "decoupled_actor_critic"])
def test_a_policy_whose_trunk_has_the_critic_on_it_waits(loss):
    learner = make_learner(make_cfg({**SHARED, "algorithm.loss_type": loss}))
    start = assert_the_critic_goes_first(learner)
    assert any(name.startswith("trunk.") for name in moved(learner, start))


@pytest.mark.parametrize("kind", VLA)
def test_a_vision_language_action_model_waits(kind):
    cfg = make_cfg(
        {
            "actor.model": VLA[kind],
            "env.train.max_episode_steps": 36,
            "actor.optim": SHARED["actor.optim"],
            "algorithm.critic_warmup_steps": 1,
        }
    )
    assert not cfg.actor.model.detach_critic_input
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = get_model(cfg.actor.model, SPEC, torch.float32)
    policy.update_normalizer({"states": torch.randn(100, 5)})
    learner = EmbodiedLearner(cfg, policy, LearnerPlace(torch.device("cpu"), seed=3))
    start = assert_the_critic_goes_first(learner, 1, steps=2)
    assert any(name.startswith("network.") for name in moved(learner, start))


def test_the_norm_of_a_gradient_is_that_of_the_critic_alone():
    trunk, alone = (
        make_learner(make_cfg({**SHARED, "actor.optim": {"lr": 1e-2, "clip_grad": 1e-3}}))
        for _ in range(2)
    )
    for name, parameter in alone.engine.model.named_parameters():
        parameter.requires_grad_(alone.engine.model.is_value_parameter(name))
    batch = rollout(trunk.engine.model)
    one, other = (learn(learner, batch)[1] for learner in (trunk, alone))
    assert one["actor/grad_norm"] == other["actor/grad_norm"] > 1e-3
    assert not moved(trunk, weights(alone))


def test_the_steps_after_it_are_those_of_a_fresh_optimiser():
    learner = make_learner(make_cfg({**SHARED, "algorithm.update_epoch": 3}))
    learn(learner, rollout(learner.engine.model))
    state = learner.engine.optimizer.state
    counted = {
        name: float(state[parameter]["step"])
        for name, parameter in learner.engine.model.named_parameters()
    }
    of_value = learner.engine.model.is_value_parameter
    assert all(steps == (3 if of_value(name) else 1) for name, steps in counted.items())


def test_a_run_resumes_in_the_middle_of_it(tmp_path):
    cfg = make_cfg({**SHARED, "algorithm.critic_warmup_steps": 3, "algorithm.update_epoch": 2})
    whole = make_learner(cfg)
    batches = [rollout(whole.engine.model, seed=seed) for seed in range(3)]
    learn(whole, batches[0])
    checkpoint = EngineCheckpoint(whole.engine)
    checkpoint.write(checkpoint.snapshot(), tmp_path)
    states = copy.deepcopy(whole.state())
    resumed = make_learner(cfg)
    EngineCheckpoint(resumed.engine).read(tmp_path)
    resumed.load_state(states)
    before = weights(whole)
    for learner in (whole, resumed):
        assert learner.engine.values_learn_alone
        for batch in batches[1:]:
            learn(learner, batch)
    assert any(name.startswith("trunk.") for name in moved(whole, before))
    assert not moved(whole, weights(resumed))


def test_observations_are_normalised_as_before_meanwhile():
    learner = make_learner(make_cfg(SHARED))
    normalizer = learner.engine.model.normalizer
    before = normalizer.shift.clone()
    for seed in range(3):
        assert torch.equal(normalizer.shift, before)
        learn(learner, rollout(learner.engine.model, seed=seed))
    assert not torch.equal(normalizer.shift, before)


def test_a_fresh_policy_gets_its_first_statistics():
    cfg = make_cfg(SHARED)
    policy = get_model(cfg.actor.model, SPEC, torch.float32)
    learner = EmbodiedLearner(cfg, policy, LearnerPlace(torch.device("cpu"), seed=3))
    assert not policy.has_statistics
    learn(learner, rollout(policy))
    first = policy.normalizer.shift.clone()
    assert policy.has_statistics and first.abs().max() > 0
    learn(learner, rollout(policy, seed=1))
    assert torch.equal(policy.normalizer.shift, first)


def test_a_policy_that_does_not_name_its_value_function_is_refused(monkeypatch):
    monkeypatch.setattr(MLPPolicy, "value_modules", ())
    with pytest.raises(ValueError, match="critic_warmup_steps is 2, but the model names no"):
        make_learner(make_cfg(SHARED))


def test_the_value_head_of_a_language_model_goes_first():
    changes = {**reasoning.GAE, "algorithm.critic_warmup_steps": 1, "actor.optim": {"lr": 1e-2}}
    learner = reasoning.make_learner(reasoning.make_cfg(changes))

    def update(seed):
        before = weights(learner)
        learner.prepare(reasoning.make_groups(learner.engine.model, seed=seed, version=seed))
        learner.update()
        return moved(learner, before)

    assert update(0) == {"value_head.weight", "value_head.bias"}
    assert len(update(1)) > 2


def test_examples_that_a_language_model_begins_with_teach_all_of_it():
    changes = {
        **reasoning.GAE,
        "algorithm.critic_warmup_steps": 1,
        "actor.supervised": {"steps": 1, "batch_size": 2, "optim": {"lr": 1e-2}},
    }
    learner = reasoning.make_learner(reasoning.make_cfg(changes))
    before = weights(learner)
    learner.supervise([([1, 2], [3, 4]), ([2], [6, 7])])
    assert any(name.startswith("lm.") for name in moved(learner, before))
    before = weights(learner)
    learner.prepare(reasoning.make_groups(learner.engine.model, version=1))
    learner.update()
    assert moved(learner, before) == {"value_head.weight", "value_head.bias"}
