"""Which parameters learn at which rate."""

import math

import pytest
import torch
from torch import nn

from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.fsdp.optimizer import OptimizerSpec
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy
from tests.unit_tests.workers.actor import reasoning
from tests.unit_tests.workers.actor.learning import make_cfg, make_policy

RATES = {"actor.optim": {"lr": 1e-2, "value_lr": 3e-3, "weight_decay": 0.0}}


class Attention(nn.Module):
    """A layer whose names sound like a critic."""

    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Linear(5, 5), nn.Linear(5, 5)
        self.critical = nn.Parameter(torch.ones(5))


class AttentivePolicy(MLPPolicy):
    """A policy with such a layer, and a value function in two parts."""

    value_modules = ("value_head", "value.trunk")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.attention = Attention()
        self.value_head_of_attention = nn.Linear(5, 5)
        self.value = nn.ModuleDict({"trunk": nn.Linear(5, 5)})


def rates(engine):
    """The learning rate of each parameter, as one Adam step moves it."""
    before = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    for parameter in engine.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    engine.step()
    return {
        name: round(float((before[name] - p.detach()).abs().max()), 5)
        for name, p in engine.model.named_parameters()
    }


def engine_of(model, cfg):
    return TrainEngine(model, cfg.actor, torch.device("cpu"), 1, 0)


def test_only_the_value_function_learns_at_the_rate_of_values():
    cfg = make_cfg(RATES)
    policy = AttentivePolicy(5, 2, make_policy(cfg).settings)
    found = rates(engine_of(policy, cfg))
    of_values = {name for name, rate in found.items() if rate == pytest.approx(3e-3, rel=1e-2)}
    assert of_values == {name for name in found if name.startswith(("value_head.", "value.trunk."))}
    others = [rate for name, rate in found.items() if name not in of_values]
    assert others == pytest.approx([1e-2] * len(others), rel=1e-2)
    assert any(name.startswith("attention.value.") for name in found)


def test_a_model_that_names_no_value_function_has_one_rate():
    found = rates(engine_of(Attention(), make_cfg({"actor.optim": {"lr": 1e-2}})))
    assert list(found.values()) == pytest.approx([1e-2] * 5, rel=1e-2)


def test_a_language_model_has_its_value_head():
    cfg = reasoning.make_cfg({**reasoning.GAE, **RATES})
    found = rates(engine_of(reasoning.make_model(cfg.actor.model), cfg))
    of_values = {name for name, rate in found.items() if rate == pytest.approx(3e-3, rel=1e-2)}
    assert of_values == {"value_head.weight", "value_head.bias"}


def test_a_rate_that_nothing_has_is_refused():
    cfg = make_cfg(RATES)
    with pytest.raises(ValueError, match=r"value_lr is 0.003, but the model has no value function"):
        engine_of(Attention(), cfg)


def two_optimizers(cfg, on_nan):
    specs = {
        "actor": OptimizerSpec(cfg.actor.optim, lambda name: not name.startswith("value_head")),
        "critic": OptimizerSpec(cfg.actor.optim, lambda name: name.startswith("value_head")),
    }
    return TrainEngine(
        make_policy(cfg), cfg.actor, torch.device("cpu"), 1, 0, on_nan=on_nan, optimizers=specs
    )


def fill_gradients(engine, value):
    for parameter in engine.model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_steps_that_are_read_later_are_the_same_steps():
    cfg = make_cfg({"actor.optim": {"lr": 1e-2, "weight_decay": 0.0, "clip_grad": 0.3}})
    read, unread = (two_optimizers(cfg, "skip") for _ in range(2))
    norms = []
    for value in (0.1, 0.5, math.nan, -0.2):
        for engine in (read, unread):
            fill_gradients(engine, value)
        expected = read.step("critic")
        norms.append(unread.step_unread("critic"))
        assert expected is None or float(norms[-1]) == pytest.approx(expected["grad_norm"])
    assert unread.read_steps("critic", torch.stack(norms)) == 3
    for one, other in zip(read.model.parameters(), unread.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert unread.skipped == read.skipped == 1
    assert unread.optimizers["critic"].steps == read.optimizers["critic"].steps == 3


def test_a_gradient_that_is_not_finite_ends_the_run_after_the_steps():
    engine = two_optimizers(make_cfg(RATES | {"actor.optim.value_lr": None}), "stop")
    before = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    norms = []
    for value in (math.inf, math.nan):
        fill_gradients(engine, value)
        norms.append(engine.step_unread("actor"))
    with pytest.raises(FloatingPointError, match="step 1 of the optimiser actor is not finite"):
        engine.read_steps("actor", torch.stack(norms))
    assert all(torch.equal(before[name], p) for name, p in engine.model.named_parameters())
