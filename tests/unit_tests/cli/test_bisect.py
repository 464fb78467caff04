"""The first thing that differs between two runs is named: what, where, and in which step."""

import copy
import json

import pytest
import yaml

from rlinf.cli import main
from rlinf.cli.bisect import first_difference
from rlinf.utils.fingerprints import FILE, FingerprintWriter, read_fingerprints
from tests.unit_tests.workers.actor.learning import learn, make_cfg, make_learner, rollout

STEPS = 4
KEYS = {
    "runner.deterministic": True,
    "actor.global_batch_size": 48,
    "algorithm.normalize_returns": True,
}


def train(folder, change=lambda step, learner, batch: None, keys=None, steps=STEPS):
    """Runs a learner on made-up rollouts of its policy and writes its fingerprints."""
    cfg = make_cfg(KEYS | (keys or {}))
    learner = make_learner(cfg)
    writer = FingerprintWriter(folder)
    writer.start(0, {"actor_ranks": 1, "versions": {"torch": "2"}}, learner.fingerprints.names())
    change(0, learner, None)
    writer.write(0, {"weights": learner.fingerprints.take()["weights"]})
    for step in range(1, steps + 1):
        batch = rollout(learner.engine.model, seed=step)
        batch.versions[:] = learner.version
        change(step, learner, batch)
        learn(learner, copy.deepcopy(batch))
        record = learner.fingerprints.take()
        writer.write(step, {**record, "batch": [record["batch"]]})
    return folder


@pytest.fixture
def a(tmp_path):
    return train(tmp_path / "a")


def difference(a, b):
    return first_difference(read_fingerprints(a), read_fingerprints(b))


def test_equal_runs_are_equal_as_far_as_both_go(a, tmp_path, capsys):
    b = train(tmp_path / "b", steps=2)
    assert (a / FILE).read_text().startswith((b / FILE).read_text())
    assert main(["bisect", str(a), str(b)]) == 0
    assert "equal in all steps that both have: 0 to 2" in capsys.readouterr().out


def at(step, change):
    return lambda now, learner, batch: change(learner, batch) if now == step else None


def faster(learner, batch):
    for group in learner.engine.optimizer.param_groups:
        group["lr"] *= 1.5


def other_sample(learner, batch):
    learner.updates.shuffle.manual_seed(77)


def other_weights(learner, batch):
    learner.engine.model.value_head.head.bias.data += 1e-6


def other_state(learner, batch):
    batch.forward_inputs["states"][7:, 2] += 1e-6
    batch.forward_inputs["action"][8:] += 1e-6
    batch.rewards[7:] += 1e-6


def other_action(learner, batch):
    batch.forward_inputs["states"][8:] += 1e-6
    batch.forward_inputs["action"][7, 1] += 1e-6


def other_reward(learner, batch):
    batch.rewards[11, 0] += 1e-6


def other_scale(learner, batch):
    learner.credit.scale.var *= 1.5


def other_normaliser(learner, batch):
    update = learner.engine.model.update_normalizer
    learner.engine.model.update_normalizer = lambda *args, **kwargs: (
        update(*args, **kwargs),
        learner.engine.model.normalizer.count.add_(1.0),
    )


@pytest.mark.parametrize(
    ("step", "change", "kind", "tensor", "where", "meaning"),
    [
        (3, faster, "weights", "log_std", "in optimiser step 1 of 2", "learning rate"),
        (2, other_sample, "samples", None, "in optimiser step 1 of 2", "another order"),
        (0, other_weights, "weights", "value_head.head.bias", "before the first", "runner.seed"),
        (3, other_state, "batch", "states", "rank 0 received, from chunk step 7", "simulator"),
        (2, other_action, "batch", "action", "from chunk step 7", "rollout computed or drew"),
        (1, other_reward, "batch", "rewards", "from chunk step 11", "simulator answered"),
        (2, other_scale, "batch", "advantages", "in what actor rank 0", "algorithm section"),
        (2, other_normaliser, "weights", "normalizer.count", "after the last", "normaliser"),
    ],
)
def test_the_cause_is_named(a, tmp_path, step, change, kind, tensor, where, meaning):
    found = difference(a, train(tmp_path / "b", at(step, change)))
    assert (found.step, found.kind) == (step, kind)
    assert (found.tensors[0] if found.tensors else None) == tensor
    assert where in found.where and meaning in found.meaning


def test_another_gradient_names_its_tensors(a, tmp_path):
    """Only what the value function has depends on the clip of its loss."""
    found = difference(a, train(tmp_path / "b", keys={"algorithm.value_loss_coef": 0.5}))
    assert (found.step, found.kind) == (1, "gradient")
    assert found.tensors and all("value_head" in name for name in found.tensors)
    assert "the loss, or the arithmetic" in found.meaning


def test_the_command_says_it_and_what_the_configs_say(a, tmp_path, capsys):
    b = train(tmp_path / "b", at(3, faster))
    for folder, rate in ((a, 1e-2), (b, 2e-2)):
        config = {"runner": {"seed": 1, "max_steps": 3}, "actor": {"optim": {"lr": rate}}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["bisect", str(a), str(b)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first difference: step 3, weights 'log_std' and ")
    assert "  equal: steps 0 to 2" in lines
    assert "  config: actor.optim.lr is 0.01 in A, 0.02 in B" in lines


def test_runs_that_cannot_be_compared(a, tmp_path, capsys):
    (tmp_path / "plain").mkdir()
    assert main(["bisect", str(a), str(tmp_path / "plain")]) == 2
    assert "only runs with runner.deterministic: true write it" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["bisect", str(tmp_path / "absent"), str(a)])
    assert f"there is no run at {tmp_path / 'absent'}" in capsys.readouterr().err
    b = train(tmp_path / "b", keys={"actor.model.hidden_sizes": [16, 16]}, steps=1)
    assert main(["bisect", str(a), str(b)]) == 2
    assert "different models: " in capsys.readouterr().err


def test_other_ranks_and_versions_are_told(a, tmp_path, capsys):
    """With another number of ranks a batch is spread differently; weights can be compared."""
    lines = [json.loads(line) for line in (a / FILE).read_text().splitlines()]
    lines[0]["facts"] |= {"actor_ranks": 2, "versions": {"torch": "3"}}
    for line in lines[2:]:
        line["batch"] = [{"states": "0" * 8}, {"states": "1" * 8}]
        for update in line["updates"]:
            update["samples"] = "0" * 8
    b = tmp_path / "b"
    b.mkdir()
    (b / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["bisect", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "actor ranks: 1 in A, 2 in B" in out and "torch 2 in A, 3 in B" in out
    assert "batches and orders of samples are not compared" in out


def test_a_run_that_stopped_an_update_early(a, tmp_path):
    text = (a / FILE).read_text().splitlines()
    record = json.loads(text[2])
    record["updates"].pop()
    b = tmp_path / "b"
    b.mkdir()
    (b / FILE).write_text("\n".join([*text[:2], json.dumps(record), *text[3:]]) + "\n")
    found = difference(a, b)
    assert (found.step, found.kind) == (1, "samples")
    assert "A made 2 optimiser steps, B 1" in found.where
