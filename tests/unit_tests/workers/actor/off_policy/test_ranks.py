"""Two ranks with half of each batch make the steps that one rank makes with all of it."""

import pytest
import torch

from tests.unit_tests.workers.actor.learning import SPEC, columns
from tests.unit_tests.workers.actor.off_policy.replaying import (
    CHOICES,
    OF_CHOICES,
    SAC,
    TD3,
    NoiseTable,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
    weights_of,
)
from tests.unit_tests.workers.actor.off_policy.test_dsrl import DSRL, VLA, steered_rollout
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

SCENARIOS = {
    "sac": {},
    "chunks": {"actor.model.num_action_chunks": 2},
    "micro-batches": {"actor.micro_batch_size": 4},
    "drawn heads": {"actor.model.num_q_heads": 5, "algorithm.critic_subsample_size": 2},
    "layer norm": {"actor.model.q_layer_norm": True, "algorithm.critic_actor_ratio": 2},
    "nothing sharded": {"actor.fsdp_config": {"sharding_strategy": "no_shard"}},
    "weights that stay gathered": {"actor.fsdp_config": {"sharding_strategy": "shard_grad_op"}},
    "offload": {"actor.enable_offload": True},
    "softplus": {"algorithm.entropy_tuning": {"alpha_type": "softplus"}},
    "choices": {},
    "td3": {"algorithm.target_update_freq": 2},
    # Steps as long as gradients: Adam makes much of those that are nearly zero.
    "noise of a VLA": {"actor.model": VLA, "actor.optim": {"lr": 1e-3, "adam_eps": 1e-2}},
}
BASES = {"choices": OF_CHOICES, "td3": TD3, "noise of a VLA": DSRL}


def half(batch, rank, world_size):
    """This rank's share of a batch."""
    return batch.split(len(batch) // world_size)[rank]


def train(name, rank=0, world_size=1):
    choices = name == "choices"
    cfg = make_sac_cfg(SCENARIOS[name], BASES.get(name, SAC))
    spec, steered = CHOICES if choices else SPEC, cfg.actor.model.get("use_dsrl", False)
    learner = make_off_policy(cfg, spec, deferred=steered, rank=rank, world_size=world_size)
    policy = make_off_policy(cfg, spec).engine.model
    share = 16 // world_size
    rows = slice(rank * share, (rank + 1) * share)
    width = policy.action_dim * (1 if steered else policy.num_action_chunks)
    learner._draw_noise = NoiseTable(width, rows)
    # What all ranks have together, to draw the same batches from.
    alone = make_off_policy(cfg, spec)
    seen = []
    for step in range(3):
        if steered:
            rollout = steered_rollout(policy, seed=step)
        else:
            rollout = replay_rollout(policy, seed=step, choices=choices)
        alone.prepare(rollout, range(8))
        batches = [half(alone.replay.sample(16), rank, world_size) for _ in range(2)]
        learner.replay.sample_batches = lambda count, size, drawn=batches: iter(drawn)
        envs = range(rank * 8 // world_size, (rank + 1) * 8 // world_size)
        learner.prepare(cut(rollout, envs), list(envs))
        seen.append(learner.update())
        if cfg.actor.enable_offload:
            learner.engine.offload()
    learner.engine.onload()
    return seen, weights_of(learner)


def cut(batch, envs):
    final, batch.final = batch.final, None
    part = columns(batch, list(envs))
    batch.final = final
    sizes = [envs.start, len(envs), 8 - envs.stop]
    part.final = final.split(sizes)[1]
    return part


def run_rank(rank):
    return {name: train(name, rank, 2) for name in SCENARIOS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks got in each scenario."""
    return run_two_ranks(run_rank, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks_do_what_one_does(ranks, name):
    metrics, expected = train(name)
    for rank in ranks:
        own_metrics, own = rank[name]
        for key, tensor in expected.items():
            torch.testing.assert_close(own[key], tensor, rtol=1e-3, atol=2e-5, msg=key)
        for one, other in zip(own_metrics, metrics, strict=True):
            counted = {key for key in other if not key.startswith("replay_buffer/cache")}
            assert {k: one[k] for k in counted} == pytest.approx(
                {k: other[k] for k in counted}, rel=2e-3, abs=1e-5
            )
    for key, tensor in ranks[0][name][1].items():
        assert torch.equal(tensor, ranks[1][name][1][key]), key


def test_the_capacity_is_shared_out(ranks):
    for rank in ranks:
        assert rank["sac"][0][0]["replay_buffer/cache_size"] == 500
