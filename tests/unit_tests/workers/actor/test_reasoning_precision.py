"""One rank of a language model in 16 bits: FSDP casts weights, which are trained in float32."""

import pytest
import torch
import torch.distributed as dist

from rlinf.hybrid_engines.fsdp import precision
from tests.unit_tests.workers.actor.reasoning import (
    distance,
    learn,
    make_cfg,
    make_groups,
    make_learner,
    weights,
)

BF16 = {"actor.model": {**make_cfg().actor.model, "precision": "bf16"}}


@pytest.fixture
def bf16(monkeypatch):
    """A CPU emulates it, which a model of this size can wait for."""
    monkeypatch.setattr(precision, "computes_in_16_bits", lambda device: True)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_one_rank_computes_in_16_bits_and_trains_32(bf16, tmp_path):
    plain, learner = make_learner(make_cfg()), make_learner(make_cfg(BF16))
    engine = learner.engine
    assert engine.sharded and not plain.engine.sharded
    assert engine.precision.params is torch.bfloat16 and engine.precision.autocast is None
    groups = make_groups(plain.engine.model)
    _, expected = learn(plain, groups)
    _, metrics = learn(learner, groups)
    assert metrics["actor/ratio"] == pytest.approx(expected["actor/ratio"], abs=0.05)
    assert metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=0.2)
    assert metrics["actor/grad_norm"] != expected["actor/grad_norm"]
    trained = weights(learner)
    assert all(tensor.dtype is torch.float32 for tensor in trained.values())
    assert distance(trained, weights(plain)) < 0.02
    # Once more, after the device was given up.
    engine.offload()
    engine.onload()
    learn(learner, groups)
    assert distance(weights(learner), trained) > 0
