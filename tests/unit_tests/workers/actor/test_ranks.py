"""Two ranks make the update that one would make, whatever is masked, filtered or not finite."""

import math
import os

import pytest

from rlinf.utils.shards import ShardPlace, own_part
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    columns,
    distance,
    learn,
    make_cfg,
    make_learner,
    make_policy,
    rollout,
    weights,
)
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

WAITING = {
    "actor.model.share_trunk": True,
    "actor.optim": {"lr": 1e-2, "weight_decay": 0.1},
    "algorithm.critic_warmup_steps": 2,
}
SCENARIOS = {
    "ppo": {"algorithm.normalize_advantages": True, "algorithm.normalize_returns": True},
    "micro-batches": {"actor.micro_batch_size": 8},
    "divergence from the reference": {"algorithm.kl_beta": 0.3},
    "episodes that weigh alike": {"algorithm.loss_agg_func": "seq-mean-token-mean"},
    "decoupled": {"algorithm.loss_type": "decoupled_actor_critic"},
    "filtered groups": {
        **GRPO,
        "algorithm.filter_rewards": True,
        "algorithm.rewards_lower_bound": 0.0,
    },
    "no group left": {
        **GRPO,
        "algorithm.filter_rewards": True,
        "algorithm.rewards_lower_bound": 100.0,
    },
    "a reward on one rank": {"runner.on_nan": "skip"},
    "a gradient of one rank": {"runner.on_nan": "skip"},
    "divergence that stops": {
        "algorithm.update_epoch": 4,
        "algorithm.target_kl": 0.03,
        "actor.micro_batch_size": 24,
        "actor.optim": {"lr": 3e-2, "weight_decay": 0.0},
    },
    "a critic with its own rate": {
        "actor.optim": {"lr": 1e-2, "value_lr": 1e-3, "weight_decay": 0.0}
    },
    "a critic that goes first": WAITING,
    "copies and a critic that goes first": {
        **WAITING,
        "actor.fsdp_config": {"sharding_strategy": "no_shard"},
    },
    "activations computed again": {"actor.fsdp_config": {"gradient_checkpointing": True}},
    "offload": {"actor.enable_offload": True},
    "weights that stay gathered": {"actor.fsdp_config": {"sharding_strategy": "shard_grad_op"}},
    "one node": {"actor.fsdp_config": {"sharding_strategy": "hybrid_shard"}},
    "two nodes": {"actor.fsdp_config": {"sharding_strategy": "hybrid_shard"}},
    "nothing sharded": {
        "actor.fsdp_config": {"sharding_strategy": "no_shard"},
        "runner.deterministic": True,
    },
    "copies, micro-batches and a reference": {
        "actor.fsdp_config": {"sharding_strategy": "no_shard"},
        "actor.micro_batch_size": 8,
        "algorithm.kl_beta": 0.3,
    },
    "copies and a gradient of one rank": {
        "actor.fsdp_config": {"sharding_strategy": "no_shard"},
        "runner.on_nan": "skip",
    },
    "copies and offload": {
        "actor.fsdp_config": {"sharding_strategy": "no_shard"},
        "actor.enable_offload": True,
    },
    "gradients exchanged at once": {
        "actor.micro_batch_size": 8,
        "actor.fsdp_config": {
            "enable_gradient_accumulation": False,
            "wrap_policy": {"module_classes_to_wrap": ["Linear"]},
        },
    },
}


def batch_of(name, cfg, step):
    batch = rollout(make_policy(cfg), seed=step)
    if name == "filtered groups":
        # The first group, which is rank 0's alone, is left out.
        batch.rewards[0, :4] -= 50.0
        batch.rewards[0, 4:] += 50.0
    if name == "a reward on one rank" and step == 0:
        batch.rewards[3, 6] = math.nan
    if name.endswith("a gradient of one rank") and step == 0:
        batch.forward_inputs["action"][3, 6] = math.nan
    return batch


def train(name, rank=0, world_size=1):
    """Two rollouts; returns the metrics of both and the weights."""
    cfg = make_cfg(SCENARIOS[name])
    os.environ["NODE_LOCAL_WORLD_SIZE"] = "1" if name == "two nodes" else str(world_size)
    learner = make_learner(cfg, rank=rank, world_size=world_size)
    share = 8 // world_size
    seen = []
    for step in range(2):
        batch = columns(batch_of(name, cfg, step), slice(rank * share, (rank + 1) * share))
        of_rollout, of_update = learn(learner, batch)
        seen.append({**of_rollout, **of_update})
        if cfg.actor.enable_offload:
            learner.engine.offload()
    learner.engine.onload()
    own = sum(own_part(p).numel() for p in learner.engine.model.parameters())
    marks = learner.fingerprints and learner.fingerprints.take()["weights"]
    return seen, weights(learner), learner.said, own, marks, learner.engine.place


def run_rank(rank):
    return {name: train(name, rank, 2) for name in SCENARIOS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks got in each scenario."""
    return run_two_ranks(run_rank, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks_do_what_one_does(ranks, name):
    metrics, expected, *_ = train(name)
    for rank in ranks:
        own_metrics, own, *_ = rank[name]
        assert distance(own, expected) < 1e-5
        for one, other in zip(own_metrics, metrics, strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert distance(ranks[0][name][1], ranks[1][name][1]) == 0.0


def test_what_is_left_out_is_counted_over_all_ranks(ranks):
    for rank in ranks:
        (first, second), *_ = rank["filtered groups"]
        assert first["groups_kept"] == 0.5 and first["actor/updates"] == 1
        (first, second), *_ = rank["no group left"]
        assert first["groups_kept"] == 0.0 and first["actor/updates_empty"] == 1
        (first, second), *_ = rank["divergence that stops"]
        assert first["actor/stopped_by_kl"] == 1 and 0 < first["actor/updates"] < 4
        # These samples are of the first policy, too.
        assert second["actor/stopped_by_kl"] == 1 and second["actor/updates"] == 0
        (first, second), *_ = rank["a reward on one rank"]
        assert (first["nan_skipped"], second["nan_skipped"]) == (1, 1)
        (first, second), *_ = rank["a gradient of one rank"]
        assert (first["actor/updates"], second["actor/updates"]) == (0, 1)
        assert (first["nan_skipped"], second["nan_skipped"]) == (1, 1)


def test_ranks_keep_what_the_strategy_says(ranks):
    total = sum(p.numel() for p in make_policy(make_cfg()).parameters())
    for name in ("ppo", "weights that stay gathered", "one node"):
        kept = [rank[name][3] for rank in ranks]
        assert sum(kept) == total and max(kept) < total, name
    for name in ("two nodes", "nothing sharded"):
        assert [rank[name][3] for rank in ranks] == [total, total], name
    assert ranks[0]["nothing sharded"][4] == ranks[1]["nothing sharded"][4] is not None
    # Each of two copies serves half of the receivers, and writes half of a checkpoint.
    places = [rank["nothing sharded"][5] for rank in ranks]
    assert places == [ShardPlace(copy=0, copies=2), ShardPlace(copy=1, copies=2)]


def test_a_policy_that_waits_for_its_critic_is_the_same_on_all_ranks(ranks):
    policy = make_policy(make_cfg(WAITING))
    initial = policy.state_dict()
    for name in ("a critic that goes first", "copies and a critic that goes first"):
        for rank in ranks:
            moved = {key for key, own in rank[name][1].items() if not own.equal(initial[key])}
            assert moved and all(policy.is_value_parameter(key) for key in moved), name


def test_one_rank_speaks_for_all(ranks):
    assert len(ranks[0]["no group left"][2]) == 2 and ranks[1]["no group left"][2] == []
    # A reward is named by the rank that has it.
    assert "env 102" in ranks[1]["a reward on one rank"][2][0]
