"""When the gate looks, what it says, and that it lets nothing through that is too far off."""

import pickle

import pytest
import torch

from rlinf.runners.agreement import AgreementGate, PolicyDisagreement, ReasoningGate, describe
from rlinf.workers.agreement import PARTS, Evidence, Finding
from tests.unit_tests.workers.actor.learning import make_cfg
from tests.unit_tests.workers.actor.reasoning import make_cfg as reasoning_cfg

AGREES = {"compared": 1.0, "logprob_max": 1e-6, "logprob_mean": 1e-7}


class Answer:
    """What a group call gives."""

    def __init__(self, value):
        self.value = value

    def wait(self):
        return self.value


class Groups:
    """An actor and a rollout group with given answers."""

    def __init__(self, *numbers, formats=(torch.float32, torch.float32), findings=()):
        self.numbers = list(numbers)
        self.formats, self.findings = formats, list(findings)
        self.asked = 0

    def agreement(self):
        self.asked += 1
        numbers = self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]
        return Answer([(numbers, self.formats[0])] * 2)

    def number_format(self):
        return Answer([self.formats[1]] * 2)

    def evidence(self):
        return Answer(["evidence of 0", "evidence of 1"])

    def find_differences(self, evidence):
        assert evidence == ["evidence of 0", "evidence of 1"]
        return Answer([self.findings, self.findings])


def gate(groups, **keys):
    cfg = make_cfg({f"runner.{key}": value for key, value in keys.items()})
    return AgreementGate(cfg, groups, groups)


def looked_at(first, steps=20, *, last_first=0, **keys):
    """Steps that are looked at, and those of them that have metrics."""
    groups = Groups(AGREES)
    own, looked, logged = gate(groups, **keys), [], []
    for step in range(first, first + steps):
        before = groups.asked
        metrics = own.check(step)
        looked += [step] if groups.asked > before else []
        logged += [step] if metrics else []
    return looked, logged


def test_it_looks_before_the_first_update_and_at_an_interval():
    assert looked_at(0) == ([0], [0])
    assert looked_at(0, agreement={"interval": 6}) == ([0, 6, 12, 18], [0, 6, 12, 18])
    assert looked_at(0, agreement={"interval": 0}) == ([0], [0])
    assert looked_at(0, agreement={"interval": -1}) == ([], [])


def test_a_resumed_run_is_looked_at_but_has_the_metrics_of_an_uninterrupted_one():
    assert looked_at(3, agreement={"interval": 6}) == ([3, 6, 12, 18], [6, 12, 18])
    assert looked_at(3, agreement={"interval": 0}) == ([3], [])


def test_it_looks_only_when_weights_have_just_been_sent():
    keys = {"weight_sync_interval": 4, "agreement": {"interval": 6}}
    assert looked_at(0, **keys) == ([0, 8, 16], [0, 8, 16])


def test_metrics_have_their_names():
    metrics = gate(Groups(AGREES)).check(0)
    assert metrics == {f"train/agreement/{name}": number for name, number in AGREES.items()}


def test_samples_of_older_weights_are_waited_for(capsys):
    groups = Groups(*[{"compared": 0.0}] * 12, AGREES)
    own = gate(groups)
    for step in range(12):
        assert own.check(step) == {}
    error = capsys.readouterr().err
    assert error.count("were not compared for 10 rollouts") == 1
    assert "runner.weight_sync_interval" in error
    own.check(12)
    assert groups.asked == 13
    own.check(13)
    assert groups.asked == 13


FINDINGS = {
    "weights": Finding("weights", "RolloutGroup:1 acted with another 'log_std'"),
    "normaliser": Finding("normaliser", "RolloutGroup:0 acted with another 'normalizer.mean'"),
    "inputs": Finding("inputs", "'states' is not what the policy saw"),
    "dtype": Finding("dtype", "RolloutGroup:0 computes in bfloat16"),
}


@pytest.mark.parametrize("part", PARTS)
def test_the_part_that_differs_is_named_once_with_advice(part):
    found = [FINDINGS[part]] if part in FINDINGS else []
    groups = Groups(AGREES | {"logprob_mean": 0.5}, findings=found)
    with pytest.raises(PolicyDisagreement) as told:
        gate(groups).check(7)
    words = str(told.value)
    assert told.value.parts == (part,)
    assert "before the update of step 8" in words and "0.5 on average" in words
    assert f"what differs: {part}\n" in words
    for finding in found:
        assert words.count(finding.text) == 1
    assert len(words.splitlines()) == 4 + len(found)
    again = pickle.loads(pickle.dumps(told.value))
    assert (str(again), again.parts) == (words, (part,))


def test_several_parts_are_named_in_order():
    words, parts = describe(0, ["x"], [FINDINGS["inputs"], FINDINGS["weights"]])
    assert parts == ("weights", "inputs") and "what differs: weights, inputs" in words


def test_sixteen_bits_have_a_laxer_tolerance_and_the_config_has_the_last_word():
    numbers = AGREES | {"logprob_mean": 0.01}
    for formats in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)):
        assert gate(Groups(numbers, formats=formats)).check(0)
    with pytest.raises(PolicyDisagreement, match="tolerance 0.001"):
        gate(Groups(numbers)).check(0)
    assert gate(Groups(numbers), agreement={"tolerance": 0.02}).check(0)
    with pytest.raises(PolicyDisagreement, match="1 at most .tolerance 0.1"):
        gate(Groups(AGREES | {"logprob_max": 1.0})).check(0)


# -- language models ------------------------------------------------------------------------------


class Engines(Groups):
    """Groups of a reasoning run: the actor compares by itself."""

    def __init__(self, *evidence, findings=()):
        super().__init__(AGREES, findings=findings)
        self.own = list(evidence)

    def evidence(self):
        return Answer(self.own)

    def find_differences(self, evidence):
        assert evidence == self.own
        return Answer([self.findings, self.findings])


def reasoning_gate(groups, **keys):
    cfg = reasoning_cfg({f"runner.{key}": value for key, value in keys.items()})
    return ReasoningGate(cfg, groups, groups)


def update_metrics(compared=1.0):
    return {"actor/loss": 1.0, "agreement/compared": compared, "agreement/logprob_max": 1e-6}


def compared_steps(first, **keys):
    """Steps whose updates are held to a tolerance, and those of them that have metrics."""
    own, held, logged = reasoning_gate(Engines(), **keys), [], []
    for step in range(first, first + 10):
        tolerance = own.tolerance(step)
        metrics = own.passed(step, update_metrics() if tolerance else {"actor/loss": 1.0})
        held += [step] if tolerance else []
        logged += [step] if "agreement/logprob_max" in metrics else []
        assert metrics["actor/loss"] == 1.0
    return held, logged


def test_updates_of_language_models_are_held_to_it_at_the_same_steps():
    assert compared_steps(0, agreement={"interval": 4}) == ([0, 4, 8], [0, 4, 8])
    assert compared_steps(3, agreement={"interval": 4}) == ([3, 4, 8, 12], [4, 8, 12])
    assert compared_steps(0, agreement={"interval": -1}) == ([], [])


def test_an_update_on_older_tokens_or_none_at_all_leaves_it_open(capsys):
    own = reasoning_gate(Engines())
    for step in range(12):
        assert own.tolerance(step) is not None
        # The policy of the first two steps waits for a critic: there was no update.
        metrics = own.passed(step, {} if step < 2 else update_metrics(compared=0.0))
        assert "agreement/compared" not in metrics
    assert capsys.readouterr().err.count("were not compared for 10 rollouts") == 1
    own.passed(12, update_metrics())
    assert own.tolerance(13) is None


def test_an_engine_without_log_probabilities_is_told_once(capsys):
    cfg = reasoning_cfg({"rollout.return_logprobs": False})
    own = ReasoningGate(cfg, Engines(), Engines())
    assert "rollout.return_logprobs is false" in capsys.readouterr().err
    assert own.tolerance(0) is None


def test_what_an_engine_does_not_show_is_told():
    hidden = Evidence("RolloutGroup:0", 0, {}, hidden="vllm keeps its weights to itself")
    error = reasoning_gate(Engines(hidden)).disagreement(4, ["far"])
    assert error.parts == ("weights", "computation")
    words = str(error)
    assert "what differs: weights or computation" in words and "step 5: far" in words
    assert "not compared: vllm keeps its weights to itself" in words
    found = reasoning_gate(Engines(hidden, findings=[FINDINGS["inputs"]])).disagreement(0, ["far"])
    assert found.parts == ("inputs",) and "which must not write into samples" in str(found)
    plain = reasoning_gate(Engines(Evidence("RolloutGroup:0", 0, {}))).disagreement(0, ["far"])
    assert plain.parts == ("computation",) and "rollout.enforce_eager" in str(plain)
