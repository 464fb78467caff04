"""Number formats follow the config where the device has them."""

import pytest
import torch

from rlinf.hybrid_engines.fsdp import precision
from rlinf.hybrid_engines.fsdp.precision import ComputePrecision, training_precision, usable_format
from tests.unit_tests.workers.actor.learning import (
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

BF16 = {"actor.model.precision": "bf16"}
CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu_with_bf16(monkeypatch):
    monkeypatch.setattr(precision, "computes_in_16_bits", lambda device: device.type == "cuda")


def formats(changes, world_size, device=CUDA):
    return training_precision(make_cfg(changes).actor, device, world_size)


def test_one_rank_uses_autocast_and_several_let_fsdp_cast(gpu_with_bf16):
    assert formats({}, 1) == formats({}, 4) == ComputePrecision()
    assert formats(BF16, 1) == ComputePrecision(autocast=torch.bfloat16)
    several = ComputePrecision(params=torch.bfloat16, reduce=torch.float32)
    assert formats(BF16, 4) == several
    assert formats({"actor.fsdp_config.mixed_precision.param_dtype": "bf16"}, 4) == several
    both = {**BF16, "actor.fsdp_config.mixed_precision.reduce_dtype": "bf16"}
    assert formats(both, 4).reduce == torch.bfloat16
    assert formats({"actor.fsdp_config.amp_autocast.enabled": True}, 4) == ComputePrecision(
        autocast=torch.bfloat16
    )
    only_here = {**BF16, "actor.fsdp_config.mixed_precision.param_dtype": "fp32"}
    assert formats(only_here, 4) == ComputePrecision()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (BF16, "actor.model.precision is bf16"),
        ({"actor.fsdp_config.amp_autocast.enabled": True}, "amp_autocast.precision is bf16"),
    ],
)
def test_a_cpu_computes_in_fp32_and_says_so(changes, key):
    for world_size in (1, 2):
        found = formats(changes, world_size, torch.device("cpu"))
        assert found.autocast is found.params is None
        assert key in found.note and "fp32 is used on cpu" in found.note
    assert usable_format("bf16", torch.device("cpu"), "key")[0] is torch.float32
    assert usable_format("fp32", torch.device("cpu"), "key") == (torch.float32, "")


def test_an_older_gpu_computes_in_fp32_and_says_so(monkeypatch):
    monkeypatch.setattr(precision, "computes_in_16_bits", lambda device: False)
    assert "does not have it: fp32 is used on cuda:0" in formats(BF16, 1).note


def test_on_a_cpu_bf16_trains_as_fp32_does():
    learner, plain = make_learner(make_cfg(BF16)), make_learner(make_cfg())
    batch = rollout(plain.engine.model)
    assert learn(learner, batch) == learn(plain, batch)
    assert distance(weights(learner), weights(plain)) == 0.0
    assert len(learner.said) == 1 and "bf16" in learner.said[0]


def test_autocast_trains_float32_weights_on_rounded_ones():
    """What a GPU does, at a size at which a CPU can emulate it."""
    learner, plain = make_learner(make_cfg()), make_learner(make_cfg())
    learner.engine.precision = ComputePrecision(autocast=torch.bfloat16)
    batch = rollout(plain.engine.model)
    _, metrics = learn(learner, batch)
    _, expected = learn(plain, batch)
    assert metrics["actor/ratio"] != expected["actor/ratio"]
    assert metrics["actor/ratio"] == pytest.approx(1.0, abs=0.05)
    assert metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=0.1)
    assert metrics["critic/value_loss"] == pytest.approx(expected["critic/value_loss"], rel=0.05)
    assert all(tensor.dtype is torch.float32 for tensor in weights(learner).values())
    normalizer, other = learner.engine.model.normalizer, plain.engine.model.normalizer
    assert normalizer.shift.dtype is torch.float32 and torch.equal(normalizer.shift, other.shift)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_trains_in_bf16():
    from rlinf.workers.actor.embodied_learner import EmbodiedLearner
    from rlinf.workers.actor.learner import LearnerPlace
    from tests.unit_tests.workers.actor.learning import make_policy

    results = []
    for changes in ({}, BF16):
        cfg = make_cfg(changes)
        learner = EmbodiedLearner(cfg, make_policy(cfg), LearnerPlace(torch.device("cuda"), seed=3))
        _, metrics = learn(learner, rollout(make_policy(cfg)))
        results.append(metrics)
        assert all(p.dtype is torch.float32 for p in learner.engine.model.parameters())
    assert results[1]["actor/ratio"] == pytest.approx(1.0, abs=0.05)
    assert results[1]["actor/ratio"] != results[0]["actor/ratio"]
    assert results[1]["actor/grad_norm"] == pytest.approx(results[0]["actor/grad_norm"], rel=0.1)
