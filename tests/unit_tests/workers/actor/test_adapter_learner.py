"""Policies with adapters learn, are saved and go on; their weights may be left out at first."""

from __future__ import annotations

import copy

import pytest
import torch
from peft.tuners.lora import LoraLayer

from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint, read_model
from rlinf.models.registry import get_model
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace
from tests.unit_tests.models.flow_vla import policies as flow
from tests.unit_tests.models.openvla import policies as tokens
from tests.unit_tests.workers.actor.learning import SPEC, learn, make_cfg, rollout

KEYS = {"num_images_in_input": 0, "num_action_chunks": 3, "add_value_head": True}
LORA = {"is_lora": True, "lora_rank": 4}
SECTIONS = {
    "openvla_oft": tokens.section(**KEYS, **LORA),
    "smolvla": flow.section("smolvla", **KEYS, **LORA),
}


def make_learner(kind, deferred=False, used=False, **keys):
    """A learner; `used` lets adapters begin with an effect, as those that are read from files."""
    cfg = make_cfg(
        {
            "actor.model": SECTIONS[kind],
            "env.train.max_episode_steps": 36,
            "actor.optim.lr": 1e-2,
            # Nothing is there: the check wants a base, and the test needs none.
            "runner.ckpt_path": "logs/before",
            **keys,
        }
    )
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = get_model(cfg.actor.model, SPEC, torch.float32, deferred=deferred)
    policy.update_normalizer({"states": torch.randn(100, 5, generator=torch.Generator())})
    if used:
        for name, parameter in policy.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(parameter, std=0.05)
    return EmbodiedLearner(cfg, policy, LearnerPlace(torch.device("cpu"), seed=3))


def weights(learner):
    return {name: t.detach().clone() for name, t in learner.engine.model.state_dict().items()}


def update(learner):
    batch = rollout(learner.engine.model, mid_chunk=True)
    batch.versions.fill_(learner.version)
    assert learner.agreement(batch)[0]["logprob_max"] < 1e-4
    learn(learner, batch)
    return weights(learner)


@pytest.mark.parametrize("kind", SECTIONS)
def test_an_update_changes_adapters_and_heads_alone(kind):
    learner = make_learner(kind)
    network = learner.engine.model.network
    before, after = weights(learner), update(learner)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    adapters = {name for name in moved if ".lora_" in name}
    assert adapters and any(name.startswith("value_head") for name in moved)
    of_network = [n.removeprefix("network.") for n in moved - adapters if n.startswith("network.")]
    assert of_network
    assert not any(network.is_base(name.replace(".base_layer.", ".")) for name in of_network)
    trained = learner.engine.optimizer.state_dict()["param_groups"]
    assert sum(len(group["params"]) for group in trained) < len(before)


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_policy_without_weights_learns_the_same(kind):
    one, two = (update(make_learner(kind, deferred)) for deferred in (False, True))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_checkpoint_goes_on(kind, tmp_path):
    first = make_learner(kind)
    update(first)
    checkpoint = EngineCheckpoint(first.engine)
    checkpoint.write(checkpoint.snapshot(), tmp_path)
    states = copy.deepcopy(first.state())
    saved = read_model(tmp_path)
    assert any(".lora_A." in name for name in saved)
    second = make_learner(kind)
    EngineCheckpoint(second.engine).read(tmp_path)
    second.load_state(states)
    one, two = update(first), update(second)
    assert all(torch.equal(one[name], two[name]) for name in one)


def update_a_little(learner):
    learn(learner, rollout(learner.engine.model, steps=3))


def reference_logprobs(learner, batch):
    learner.prepare(batch, range(8))
    return learner._prepared[2]


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("kind", SECTIONS)
def test_the_reference_is_the_initial_policy_without_a_copy_of_the_base(kind, used, tmp_path):
    keys = {"algorithm.kl_beta": 0.1}
    learner = make_learner(kind, used=used, **keys)
    engine, initial = learner.engine, copy.deepcopy(learner.engine.model)
    assert engine.reference is None
    kept, network = engine.initial.state_dict(), engine.model.network
    names = [n.removeprefix("network.") for n in kept if n.startswith("network.")]
    assert not any(
        network.is_base(n.replace(".base_layer.", ".")) for n in names if "lora" not in n
    )

    update_a_little(learner)
    batch, present = rollout(engine.model, steps=2, seed=7), weights(learner)
    found = reference_logprobs(learner, batch)
    # The numbers are those of a copy, and what is trained is as it was.
    engine.model, trained, engine.initial, shared = initial, engine.model, None, engine.initial
    assert torch.equal(found, learner._recompute(batch))
    engine.model, engine.initial = trained, shared
    assert not torch.equal(found, learner._recompute(batch))
    assert all(torch.equal(present[name], t) for name, t in weights(learner).items())

    checkpoint = EngineCheckpoint(engine)
    checkpoint.write(checkpoint.snapshot(), tmp_path)
    resumed = make_learner(kind, **keys)
    EngineCheckpoint(resumed.engine).read(tmp_path)
    assert torch.equal(reference_logprobs(resumed, batch), found)


@pytest.mark.parametrize("kind", SECTIONS)
def test_with_fresh_adapters_the_reference_is_the_bare_base(kind):
    learner = make_learner(kind, **{"algorithm.kl_beta": 0.1})
    initial = copy.deepcopy(learner.engine.model)
    update_a_little(learner)
    batch = rollout(learner.engine.model, steps=2, seed=7)
    found = reference_logprobs(learner, batch)
    layers = [module for module in initial.modules() if isinstance(module, LoraLayer)]
    assert layers
    for layer in layers:
        layer.enable_adapters(False)
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    bare = initial(forward_inputs=inputs)["logprobs"].detach().view_as(found)
    torch.testing.assert_close(found, bare, rtol=0, atol=1e-5)
