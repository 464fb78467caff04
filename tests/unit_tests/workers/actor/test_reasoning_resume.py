"""A learner that was saved and loaded goes on as if it had not been."""

import pytest
import torch

from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.utils.checkpoint import load_tree, save_tree
from tests.unit_tests.workers.actor.reasoning import (
    CRITIC,
    MODEL,
    distance,
    learn,
    make_cfg,
    make_groups,
    make_learner,
    make_model,
    weights,
)
from tests.unit_tests.workers.actor.test_reasoning_learner import EXAMPLES, SUPERVISED

STEPS = {"algorithm.n_minibatches": 2, "algorithm.update_epoch": 2}
SCENARIOS = {
    "reference": {"algorithm.kl_beta": 0.1, **STEPS},
    "critic": {**CRITIC, **STEPS, "actor.optim.lr_scheduler": "cosine"},
    "adapters": {"actor.model": {**MODEL, "is_lora": True}, **STEPS},
    "examples": {**SUPERVISED, **STEPS},
}


def engines(learner):
    found = {"actor": learner.engine}
    if learner.critic is not None:
        found["critic"] = learner.critic.engine
    return found


def save(learner, folder):
    for name, engine in engines(learner).items():
        checkpoint = EngineCheckpoint(engine)
        checkpoint.write(checkpoint.snapshot(), folder / name)
    save_tree(folder / "rank_0", learner.state())


def load(learner, folder):
    for name, engine in engines(learner).items():
        EngineCheckpoint(engine).read(folder / name)
    assert learner.load_state(load_tree(folder / "rank_0")) == []


def train(learner, name, steps):
    for step in steps:
        if name == "examples" and step < 3:
            learner.supervise(EXAMPLES)
        else:
            sampler = make_model(learner.cfg.actor.model)
            learn(learner, make_groups(sampler, seed=step, version=learner.version))


@pytest.mark.parametrize(
    ("name", "half"), [*((name, 2) for name in SCENARIOS), ("critic", 3), ("examples", 3)]
)
def test_two_halves_are_one_whole(tmp_path, name, half):
    """The examples end after three steps: one half ends among them, the other with them."""
    cfg = make_cfg(SCENARIOS[name])
    whole = make_learner(cfg, total_steps=40)
    train(whole, name, range(5))
    first = make_learner(cfg, total_steps=40)
    train(first, name, range(half))
    save(first, tmp_path)
    second = make_learner(cfg, total_steps=40)
    torch.manual_seed(123)
    load(second, tmp_path)
    train(second, name, range(half, 5))
    assert distance(weights(whole), weights(second)) == 0.0
    assert whole.state().keys() == second.state().keys()
    assert whole.version == second.version == 5
    assert torch.equal(whole.updates.shuffle.get_state(), second.updates.shuffle.get_state())


def test_another_number_of_ranks_is_told():
    learner = make_learner(make_cfg())
    state = learner.state()
    state["actor"]["world_size"] = 4
    (note,) = learner.load_state(state)
    assert "there were 4 actor ranks and now are 1" in note


def test_fingerprints_tell_runs_apart():
    """Two runs are alike until a reward differs; then the reward is what differs first."""
    records = []
    for changed in (False, False, True):
        learner = make_learner(make_cfg({"runner.deterministic": True, **STEPS}))
        groups = make_groups(learner.engine.model)
        if changed:
            groups[1].samples[1].reward += 0.5
        learn(learner, groups)
        records.append(learner.fingerprints.take())
    one, same, other = records
    assert one == same and len(one["updates"]) == 4
    assert one["weights"] == one["updates"][-1]["weights"] != other["weights"]
    differ = [name for name in one["batch"] if one["batch"][name] != other["batch"][name]]
    assert differ == ["rewards", "advantages"]
