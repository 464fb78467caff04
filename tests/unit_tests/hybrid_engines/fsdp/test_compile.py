"""A compiled network learns what the plain one learns."""

import torch

from rlinf.hybrid_engines.fsdp import engine
from tests.unit_tests.workers.actor import reasoning
from tests.unit_tests.workers.actor.learning import (
    distance,
    learn,
    make_cfg,
    make_learner,
    make_policy,
    rollout,
    weights,
)


def test_a_compiled_network_makes_the_same_update(monkeypatch):
    # What makes machine code needs a compiler; tracing and differentiating are the same without.
    monkeypatch.setattr(engine, "_COMPILER", "aot_eager")
    results = []
    for compiled in (False, True):
        cfg = make_cfg({"actor.compile_model": compiled})
        learner = make_learner(cfg)
        before = torch._dynamo.utils.counters["frames"]["ok"]
        learn(learner, rollout(make_policy(cfg)))
        assert (torch._dynamo.utils.counters["frames"]["ok"] > before) == compiled
        results.append(weights(learner))
    assert results[0].keys() == results[1].keys()
    assert distance(*results) < 1e-6


def test_compiled_layers_of_a_language_model_make_the_same_update(monkeypatch):
    monkeypatch.setattr(engine, "_COMPILER", "aot_eager")
    results = []
    for compiled in (False, True):
        model = {**reasoning.MODEL, "sequence_layout": "packed"}
        cfg = reasoning.make_cfg({"actor.model": model, "actor.compile_model": compiled})
        learner = reasoning.make_learner(cfg)
        before = torch._dynamo.utils.counters["frames"]["ok"]
        reasoning.learn(learner, reasoning.make_groups(reasoning.make_model(cfg.actor.model)))
        assert (torch._dynamo.utils.counters["frames"]["ok"] > before) == compiled
        results.append(reasoning.weights(learner))
    assert results[0].keys() == results[1].keys()
    assert distance(*results) < 1e-6
