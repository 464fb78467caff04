"""Several optimisers of one model: each trains its own part, and nothing leaks between them."""

import pytest
import torch
from torch import nn

from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint, counters, set_counters
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.fsdp.optimizer import OptimizerSpec
from tests.unit_tests.workers.actor.learning import make_cfg


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.q = nn.Linear(3, 2), nn.Linear(3, 1)

    def forward(self, x):
        return self.policy(x), self.q(x)


def make(**changes):
    torch.manual_seed(0)
    actor = make_cfg({"actor.optim.lr": 1e-2, "actor.optim.clip_grad": 0.1, **changes}).actor
    slow = make_cfg({"actor.optim.lr": 1e-3, "actor.optim.clip_grad": None}).actor.optim
    specs = {
        "actor": OptimizerSpec(actor.optim, lambda name: name.startswith("policy")),
        "critic": OptimizerSpec(slow, lambda name: name.startswith("q")),
    }
    return TrainEngine(Two(), actor, torch.device("cpu"), 1, 10, optimizers=specs)


def losses(engine, x):
    policy, q = engine.forward(x=x)
    return policy.square().sum(), q.square().sum()


def weights(engine):
    return {name: tensor.clone() for name, tensor in engine.full_tensors()}


def test_a_step_changes_what_its_optimiser_trains_and_nothing_else():
    engine, x = make(), torch.randn(5, 3)
    before = weights(engine)
    of_policy, of_q = losses(engine, x)
    # The whole gradient is there; the norm is that of the part that is trained.
    engine.backward(of_policy * 100 + of_q, last=True)
    expected = torch.cat([p.grad.flatten() for p in engine.model.q.parameters()]).norm()
    step = engine.step("critic")
    assert step["lr"] == 1e-3 and step["grad_norm"] == pytest.approx(float(expected))
    after = weights(engine)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"q.weight", "q.bias"}
    assert all(p.grad is None for p in engine.model.parameters()), "nothing is left over"
    assert engine.optimizers["critic"].steps == 1 and engine.steps == 0


def test_all_optimisers_are_part_of_a_checkpoint(tmp_path):
    one, other, x = make(), make(), torch.randn(5, 3)
    for turn in range(6):
        of_policy, of_q = losses(one, x)
        one.backward(of_q if turn % 3 else of_policy, last=True)
        one.step("critic" if turn % 3 else "actor")
    one.optimizers["critic"].set_progress(4)
    EngineCheckpoint(one).write(EngineCheckpoint(one).snapshot(), tmp_path)
    EngineCheckpoint(other).read(tmp_path)
    set_counters(other, counters(one))
    assert other.steps == 2 and other.optimizers["critic"].steps == 4
    assert other.optimizers["critic"].progress == 4
    for engine in (one, other):
        _, of_q = losses(engine, x)
        engine.backward(of_q, last=True)
        engine.step("critic")
    ours, theirs = weights(one), weights(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_parameter_with_no_optimiser_or_two_is_named():
    cfg = make_cfg().actor
    for trains, found in ((lambda name: "weight" in name, "none"), (None, "actor and critic")):
        specs = {"actor": OptimizerSpec(cfg.optim, trains)}
        if found != "none":
            specs["critic"] = OptimizerSpec(cfg.optim, None)
        with pytest.raises(ValueError, match=f"must have one optimiser, and has {found}"):
            TrainEngine(Two(), cfg, torch.device("cpu"), 1, 10, optimizers=specs)
    frozen = Two()
    frozen.q.requires_grad_(False)
    specs = {"actor": OptimizerSpec(cfg.optim, lambda name: name.startswith("policy"))}
    TrainEngine(frozen, cfg, torch.device("cpu"), 1, 10, optimizers=specs)
