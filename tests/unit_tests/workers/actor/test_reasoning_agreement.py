"""The learner of responses compares with the engine before its first optimiser step, and stops."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch

from rlinf.algorithms.agreement import Tolerance
from rlinf.data.token_batch import TokenBatch
from rlinf.models.lora import merged_tensors
from rlinf.workers.agreement import Evidence, checksums_of
from rlinf.workers.reasoning_agreement import SeenResponses, TooFarApart, received_responses
from tests.unit_tests.workers.actor.reasoning import (
    CRITIC,
    distance,
    make_cfg,
    make_groups,
    make_learner,
    make_model,
    weights,
)

STRICT = Tolerance.of(1e-4, torch.float32)
STREAM = {"actor.stream_groups": 2}
WAYS = {
    "one update": {},
    "two epochs of two": {"algorithm.update_epoch": 2, "algorithm.n_minibatches": 2},
    "the engine's log-probabilities": {"algorithm.recompute_logprobs": False},
    "a critic": CRITIC,
    "streaming": STREAM,
}


def update(learner, groups, tolerance=STRICT):
    if learner.cfg.actor.stream_groups:
        return learner.stream(iter(groups), len(groups), tolerance)[1]
    learner.prepare(groups)
    return learner.update(tolerance)


def of_agreement(metrics):
    prefix = "agreement/"
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}


@pytest.mark.parametrize("way", WAYS)
def test_samples_of_the_same_policy_agree(way):
    learner = make_learner(make_cfg(WAYS[way]))
    metrics = update(learner, make_groups(learner.engine.model))
    numbers = of_agreement(metrics)
    assert numbers["compared"] == 1.0 and metrics["actor/updates"] > 0
    assert 0 <= numbers["logprob_mean"] <= numbers["logprob_max"] < 1e-5
    assert not of_agreement(update(learner, make_groups(learner.engine.model, version=1), None))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_updated_when_they_are_too_far_apart(way):
    learner = make_learner(make_cfg(WAYS[way]))
    groups = make_groups(make_model(learner.cfg.actor.model, seed=9))
    before = weights(learner)
    with pytest.raises(TooFarApart, match="on average .tolerance 0.0001."):
        update(learner, groups)
    assert distance(before, weights(learner)) == 0.0 and learner.version == 0
    assert all(parameter.grad is None for parameter in learner.engine.model.parameters())
    # Without a tolerance the same samples are trained on.
    update(learner, groups, None)
    assert distance(before, weights(learner)) > 0.0


def test_it_costs_no_pass_of_its_own():
    learner = make_learner(make_cfg())
    passes = []
    learner.engine.model.register_forward_hook(lambda *_: passes.append(1))
    update(learner, make_groups(make_model(learner.cfg.actor.model)))
    assert len(passes) == 1


@pytest.mark.parametrize("way", ["one update", "streaming"])
def test_the_numbers_are_the_differences(way):
    learner = make_learner(make_cfg(WAYS[way]))
    groups = make_groups(learner.engine.model)
    count = sum(len(s.response_ids) for g in groups for s in g.samples)
    groups[1].samples[2].logprobs[0] += 0.25
    numbers = of_agreement(update(learner, groups, Tolerance(1.0, 1.0)))
    assert numbers["logprob_max"] == pytest.approx(0.25, abs=1e-5)
    assert numbers["logprob_mean"] == pytest.approx(0.25 / count, abs=1e-5)


def test_tokens_of_other_weights_are_not_compared():
    learner = make_learner(make_cfg())
    stale = make_model(learner.cfg.actor.model, seed=9)
    numbers = of_agreement(update(learner, make_groups(stale, version=7)))
    assert numbers == {"compared": 0.0}
    # Responses that were begun with older weights and carried on with these.
    old, new = (make_groups(m, seed=2) for m in (stale, learner.engine.model))
    tokens = fresh = 0
    for one, other in zip(old, new, strict=True):
        for a, b in zip(one.samples, other.samples, strict=True):
            half = len(b.versions) // 2
            b.logprobs[:half] = a.logprobs[:half]
            b.versions = [0] * half + [1] * (len(b.versions) - half)
            tokens, fresh = tokens + len(b.versions), fresh + len(b.versions) - half
    numbers = of_agreement(update(learner, new))
    assert numbers["compared"] == pytest.approx(fresh / tokens) and numbers["logprob_max"] < 1e-5


def test_while_the_critic_goes_first_there_is_nothing_to_compare():
    learner = make_learner(make_cfg({**CRITIC, "algorithm.critic_warmup_steps": 1}))
    groups = make_groups(make_model(learner.cfg.actor.model, seed=9))
    assert not of_agreement(update(learner, groups))
    for group in groups:
        for sample in group.samples:
            sample.versions = [1] * len(sample.versions)
    with pytest.raises(TooFarApart):
        update(learner, groups)


# -- why ------------------------------------------------------------------------------------------


def evidence_of(model, groups, worker="RolloutGroup:0", version=0):
    """What a rollout worker that generates with this model would give."""
    seen = SeenResponses(2)
    for group in groups:
        seen.note(group)
    tensors = checksums_of(merged_tensors(model.plain, lambda tensor: tensor))
    return Evidence(worker, version, tensors, inputs=seen.table())


def refused(groups=None, changes=None):
    """A learner that has just refused an update on some groups."""
    learner = make_learner(make_cfg(changes))
    groups = groups or make_groups(make_model(learner.cfg.actor.model, seed=9))
    with pytest.raises(TooFarApart):
        update(learner, groups)
    return learner, groups


def findings(learner, *evidence):
    tensors = learner.engine.model.policy_tensors(lambda tensor: tensor)
    return learner.find_differences(tensors, list(evidence))


@pytest.mark.parametrize("way", ["one update", "streaming"])
def test_nothing_else_differs_when_the_engine_computes_something_else(way):
    learner, groups = refused(changes=WAYS[way])
    assert findings(learner, evidence_of(copy.deepcopy(learner.engine.model), groups)) == []


def test_a_changed_weight_is_named_with_its_worker():
    learner, groups = refused()
    model = copy.deepcopy(learner.engine.model)
    good = evidence_of(model, groups)
    model.plain.model.norm.weight.data[0] += 1e-3
    bad = evidence_of(model, groups, "RolloutGroup:1")
    (found,) = findings(learner, good, bad)
    assert found.part == "weights"
    assert "RolloutGroup:1 acted with another 'model.norm.weight'" in found.text


def test_weights_of_another_version_are_not_held_against_it():
    learner, groups = refused()
    other = make_model(learner.cfg.actor.model, seed=9)
    assert findings(learner, evidence_of(other, groups, version=1)) == []


@pytest.mark.parametrize("what", ["prompt_ids", "response_ids", "logprobs"])
def test_what_changed_on_the_way_is_named_with_its_place(what):
    cfg = make_cfg()
    model = make_model(cfg.actor.model)
    groups = make_groups(model)
    before = evidence_of(model, groups)
    sample = groups[1].samples[2]
    if what == "logprobs":
        sample.logprobs = [x + 30.0 for x in sample.logprobs]
    else:
        own = getattr(sample, what)
        own[0] = (own[0] + 1) % 13
        sample.logprobs = [x + 30.0 for x in sample.logprobs]
    learner, _ = refused(groups)
    named = {found.text.split("'")[1] for found in findings(learner, before)}
    assert named == {"logprobs", *([what.removesuffix("_ids")] if what != "logprobs" else [])}
    assert {found.part for found in findings(learner, before)} == {"inputs"}
    for found in findings(learner, before):
        assert "1 of 16 sampled rows, first of response 2 to prompt 1, seen by" in found.text


def test_another_number_format_is_named():
    learner, groups = refused()
    model = copy.deepcopy(learner.engine.model).to(torch.bfloat16)
    (found,) = findings(learner, evidence_of(model, groups))
    assert found.part == "dtype" and "RolloutGroup:0 computes in bfloat16" in found.text


def test_an_engine_that_shows_no_weights_is_held_to_the_rest():
    learner, groups = refused()
    seen = evidence_of(learner.engine.model, groups).inputs
    hidden = Evidence(
        "RolloutGroup:0",
        0,
        {},
        inputs=seen,
        hidden="no weights",
        stated=frozenset({torch.float32}),
    )
    assert findings(learner, hidden) == []
    rounded = replace(hidden, stated=frozenset({torch.bfloat16}))
    assert [found.part for found in findings(learner, rounded)] == ["dtype"]


# -- notes ----------------------------------------------------------------------------------------


def test_only_the_latest_steps_are_kept():
    model = make_model(make_cfg().actor.model)
    seen = SeenResponses(2)
    for step in range(4):
        for group in make_groups(model, seed=step, count=2, size=2):
            group.key = step
            seen.note(group)
    assert {place[0] for place in seen.table()} == {200, 201, 300, 301}


def test_what_arrives_unchanged_has_the_same_checksums():
    groups = make_groups(make_model(make_cfg().actor.model))
    seen = SeenResponses(1)
    for group in groups:
        seen.note(group)
    batch = TokenBatch.of(groups).select(torch.randperm(16))
    assert received_responses(batch) == seen.table()


def test_the_refusal_travels():
    error = pickle.loads(pickle.dumps(TooFarApart(["a", "b"])))
    assert error.too_far == ["a", "b"] and "not made: a; b" in str(error)
