"""The learner finds out whether a rollout is what its own policy did, and if not, why."""

import copy

import pytest
import torch

from rlinf.workers.agreement import Evidence, SeenInputs, sampled_steps
from tests.unit_tests.workers.actor.learning import GRPO, learn, make_cfg, make_learner, rollout

ENVS = range(100, 108)
KINDS = ("max", "mean")


def evidence_of(policy, batch, version=0, worker="RolloutGroup:0", envs=ENVS):
    """What a rollout worker that acts with this policy would give."""
    seen = SeenInputs()
    for step in sampled_steps(len(batch.rewards)):
        inputs = {key: value[step] for key, value in batch.forward_inputs.items()}
        seen.note(0, step, list(envs), inputs)
    return Evidence.of(worker, version, policy, seen.table())


@pytest.mark.parametrize("count", [1, 2, 4, 5, 12, 100, 1001])
def test_the_first_and_the_last_step_are_among_those_that_are_compared(count):
    steps = sampled_steps(count)
    assert steps[0] == 0 and steps[-1] == count - 1
    assert len(set(steps)) == len(steps) == min(4, count)


@pytest.mark.parametrize("keys", [{}, {"actor.model.num_action_chunks": 3}])
@pytest.mark.parametrize("micro", [None, 8])
def test_a_rollout_of_the_same_policy_agrees(keys, micro):
    learner = make_learner(make_cfg({**keys, "actor.micro_batch_size": micro}))
    batch = rollout(copy.deepcopy(learner.engine.model))
    numbers, dtype = learner.agreement(batch)
    assert dtype == torch.float32 and numbers["compared"] == 1.0
    assert set(numbers) == {"compared", *(f"{a}_{b}" for a in ("logprob", "value") for b in KINDS)}
    assert max(numbers[key] for key in numbers if key != "compared") < 1e-5


def test_the_numbers_are_the_differences():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    clean, _ = learner.agreement(batch)
    batch.prev_logprobs[0, 3, 1] += 2.0
    batch.prev_values[11, 2] += 3.0
    # Not among the sampled steps.
    batch.prev_logprobs[1] += 50.0
    numbers, _ = learner.agreement(batch)
    assert numbers["logprob_max"] == pytest.approx(2.0, rel=1e-4)
    assert numbers["logprob_mean"] == pytest.approx(2.0 / (4 * 8 * 2), abs=1e-5)
    assert 0.5 < numbers["value_max"] < 3.0 and clean["value_max"] < 1e-5


def test_without_a_value_head_there_are_no_values_to_compare():
    learner = make_learner(make_cfg(GRPO))
    numbers, _ = learner.agreement(rollout(learner.engine.model))
    assert set(numbers) == {"compared", "logprob_max", "logprob_mean"}


def test_samples_of_other_weights_are_not_compared():
    learner = make_learner(make_cfg())
    old = copy.deepcopy(learner.engine.model)
    learn(learner, rollout(old, seed=1))
    assert learner.version == 1
    batch = rollout(old, seed=2)
    numbers, _ = learner.agreement(batch)
    assert numbers == {"compared": 0.0}
    newer = rollout(learner.engine.model, seed=2)
    for name in ("prev_logprobs", "prev_values"):
        getattr(batch, name)[:, 4:] = getattr(newer, name)[:, 4:]
    batch.forward_inputs["action"][:, 4:] = newer.forward_inputs["action"][:, 4:]
    batch.versions[:, 4:] = 1
    numbers, _ = learner.agreement(batch)
    assert numbers["compared"] == 0.5 and numbers["logprob_max"] < 1e-5


def test_a_rollout_that_never_got_weights_is_refused():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    batch.versions[:] = -1
    with pytest.raises(RuntimeError, match="before weights of the actor had reached it"):
        learner.agreement(batch)


def test_a_sample_of_nan_does_not_agree_with_a_number():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    batch.prev_logprobs[0, 0, 0] = torch.nan
    assert learner.agreement(batch)[0]["logprob_max"] == torch.inf


# -- why ------------------------------------------------------------------------------------------


def findings(learner, batch, *evidence):
    return learner.find_differences(batch, list(ENVS), list(evidence))


def test_nothing_differs_where_nothing_was_changed():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    assert findings(learner, batch, evidence_of(copy.deepcopy(learner.engine.model), batch)) == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("policy_head.head.weight", "weights"),
        ("log_std", "weights"),
        ("normalizer.shift", "normaliser"),
        ("normalizer.count", "normaliser"),
    ],
)
def test_a_changed_tensor_is_named_with_its_worker(name, part):
    learner = make_learner(make_cfg())
    policy = copy.deepcopy(learner.engine.model)
    batch = rollout(policy)
    good = evidence_of(policy, batch, worker="RolloutGroup:0")
    policy.state_dict()[name].flatten()[0] += 1e-3
    bad = evidence_of(policy, batch, worker="RolloutGroup:1")
    (found,) = findings(learner, batch, good, bad)
    assert found.part == part and f"RolloutGroup:1 acted with another '{name}'" in found.text


def test_a_tensor_that_only_one_side_has_differs():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    evidence = evidence_of(learner.engine.model, batch)
    evidence.tensors["adapter.weight"] = evidence.tensors.pop("log_std")
    (found,) = findings(learner, batch, evidence)
    assert found.part == "weights" and "'log_std', 'adapter.weight'" in found.text


def test_weights_of_another_version_are_not_held_against_it():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    policy = copy.deepcopy(learner.engine.model)
    policy.log_std.data += 1
    assert findings(learner, batch, evidence_of(policy, batch, version=1)) == []


def test_a_changed_observation_is_named_with_its_place():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    evidence = evidence_of(learner.engine.model, batch)
    batch.forward_inputs["states"][4, 6, 2] += 1e-6
    batch.forward_inputs["states"][11, 1] = 0.0
    (found,) = findings(learner, batch, evidence)
    assert found.part == "inputs"
    assert "'states'" in found.text and "2 of 32 sampled rows" in found.text
    assert "env 106 in chunk step 4 of epoch 0, seen by RolloutGroup:0" in found.text


def test_rows_that_changed_places_are_found():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    evidence = evidence_of(learner.engine.model, batch)
    for value in batch.forward_inputs.values():
        value[:, [2, 5]] = value[:, [5, 2]]
    found = findings(learner, batch, evidence)
    assert {(each.part, each.text.split("'")[1]) for each in found} == {
        ("inputs", "states"),
        ("inputs", "action"),
    }


def test_epochs_stand_side_by_side():
    learner = make_learner(make_cfg({"env.train.rollout_epoch": 2}))
    batch = rollout(learner.engine.model)
    seen = SeenInputs()
    for step in sampled_steps(12):
        for epoch in range(2):
            half = slice(4 * epoch, 4 * epoch + 4)
            inputs = {key: value[step, half] for key, value in batch.forward_inputs.items()}
            seen.note(epoch, step, [7, 8, 9, 10], inputs)
    evidence = Evidence.of("RolloutGroup:0", 0, learner.engine.model, seen.table())
    assert learner.find_differences(batch, [7, 8, 9, 10] * 2, [evidence]) == []
    batch.forward_inputs["states"][0, 5] = 0.0
    (found,) = learner.find_differences(batch, [7, 8, 9, 10] * 2, [evidence])
    assert "env 8 in chunk step 0 of epoch 1" in found.text


def test_another_number_format_is_named_and_rounded_weights_are_not():
    learner = make_learner(make_cfg())
    batch = rollout(learner.engine.model)
    policy = copy.deepcopy(learner.engine.model).to(torch.bfloat16)
    (found,) = findings(learner, batch, evidence_of(policy, batch))
    assert found.part == "dtype"
    assert found.text == "RolloutGroup:0 computes in bfloat16, the learner in float32"
