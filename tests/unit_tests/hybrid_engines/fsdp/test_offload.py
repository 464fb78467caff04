"""The engine gives its device up and takes it back, and trains as if it never had."""

import pytest
import torch

from rlinf.hybrid_engines.fsdp.optimizer_memory import OptimizerMemory
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace
from tests.unit_tests.workers.actor.learning import (
    distance,
    learn,
    make_cfg,
    make_learner,
    make_policy,
    rollout,
    weights,
)

KL = {"algorithm.kl_beta": 0.1}


def test_training_goes_on_where_it_was():
    learner, plain = make_learner(make_cfg(KL)), make_learner(make_cfg(KL))
    learner.engine.offload()
    for seed in range(3):
        batch = rollout(make_policy(make_cfg()), seed=seed)
        assert learn(learner, batch) == learn(plain, batch)
        learner.engine.offload()
    assert learner.engine.offloads == 4 and plain.engine.offloads == 0
    assert distance(weights(learner), weights(plain)) == 0.0


def test_step_counters_stay_where_the_optimiser_wants_them():
    parameter = torch.nn.Parameter(torch.zeros(3))
    for fused, expected in ((False, "cpu"), (True, "meta")):
        optimizer = torch.optim.AdamW([parameter], fused=fused)
        parameter.grad = torch.ones(3)
        optimizer.step()
        memory = OptimizerMemory(optimizer)
        # A device that is everywhere and holds nothing.
        memory.onload(torch.device("meta"))
        state = optimizer.state[parameter]
        assert state["exp_avg"].device.type == state["exp_avg_sq"].device.type == "meta"
        assert state["step"].device.type == expected


def devices(engine):
    models = {
        t.device.type for m in (engine.model, engine.reference) for t in m.state_dict().values()
    }
    moments = {
        s[k].device.type for s in engine.optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")
    }
    return models, moments


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("sharded", [False, True])
def test_a_gpu_is_free_while_the_engine_is_away(sharded):
    import torch.distributed as dist

    cfg = make_cfg({**KL, "actor.model.hidden_sizes": [2048, 2048]})
    device = torch.device("cuda", 0)
    if sharded:
        # One rank is enough to shard; that it takes itself for two scales all gradients alike.
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    place = LearnerPlace(device, seed=3, world_size=2 if sharded else 1)
    learner = EmbodiedLearner(cfg, make_policy(cfg), place)
    plain = EmbodiedLearner(cfg, make_policy(cfg), place)
    try:
        for seed in range(2):
            batch = rollout(make_policy(cfg), seed=seed)
            learn(learner, batch)
            learn(plain, batch)
            here = torch.cuda.memory_allocated()
            learner.engine.offload()
            assert devices(learner.engine) == ({"cpu"}, {"cpu"})
            # Weights, those of the reference, and two moments of the optimiser.
            size = sum(parameter.nbytes for parameter in learner.engine.model.parameters())
            assert here - torch.cuda.memory_allocated() > 3.9 * size
            learner.engine.onload(optimizer=False)
            assert devices(learner.engine) == ({"cuda"}, {"cpu"})
            assert distance(weights(learner), weights(plain)) == 0.0
            learner.engine.onload()
            assert devices(learner.engine) == ({"cuda"}, {"cuda"})
            learner.engine.offload()
        learn(learner, rollout(make_policy(cfg), seed=5))
        learn(plain, rollout(make_policy(cfg), seed=5))
        assert distance(weights(learner), weights(plain)) == 0.0
    finally:
        if sharded:
            dist.destroy_process_group()
