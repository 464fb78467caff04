"""Two ranks make the update of responses that one would make."""

import pytest

from rlinf.models.causal_lm.model import CausalLM
from tests.unit_tests.workers.actor.episodes import AGENTS, make_episodes
from tests.unit_tests.workers.actor.reasoning import (
    CRITIC,
    GAE,
    MODEL,
    distance,
    learn,
    make_cfg,
    make_groups,
    make_learner,
    make_model,
    uneven,
    weights,
)
from tests.unit_tests.workers.actor.test_reasoning_learner import EXAMPLES, SUPERVISED
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

TOKENS = {"runner.enable_dynamic_batch_size": True, "runner.max_tokens_per_mbs": 34}
SCENARIOS = {
    "grpo": {"algorithm.loss_agg_func": "seq-mean-token-mean", **TOKENS},
    "dapo": {"algorithm.kl_beta": 0.1, "algorithm.entropy_bonus": 0.01, **TOKENS},
    "reinforce++": {"algorithm.adv_type": "reinpp", "algorithm.use_reinpp_baseline": True},
    "ppo with a head": {**GAE, "algorithm.update_epoch": 2},
    "ppo with a critic": {**CRITIC, **TOKENS},
    "gspo": {
        "algorithm.policy_loss": "gspo",
        "algorithm.update_epoch": 2,
        "algorithm.mismatch": {"level": "geometric", "mode": "mask", "low": 0.5, "high": 1.5},
        **TOKENS,
    },
    "adapters": {"actor.model": {**MODEL, "is_lora": True}, "algorithm.kl_beta": 0.1},
    "balance": {"actor.enable_dp_load_balance": True},
    "stream": {"actor.stream_groups": 1, **TOKENS},
    "groups of any size": {**CRITIC, "algorithm.kl_beta": 0.1, **TOKENS},
    "one rank has nothing": {"algorithm.adv_type": "reinpp", **TOKENS},
    "a reference on the host": {"algorithm.kl_beta": 0.1, "actor.offload_reference": True},
    "recomputed layers": {"actor.fsdp_config.gradient_checkpointing": True},
    "examples": SUPERVISED,
    "turns of agents": {
        **AGENTS,
        "algorithm.advantage_mode": "turn",
        "algorithm.loss_agg_func": "seq-mean-token-mean",
        "algorithm.loss_scales": ["group_level", "agent_level", "turn_level"],
        **TOKENS,
    },
}


def train(name, rank=0, world_size=1):
    """Two batches; returns the metrics of both and the weights."""
    cfg = make_cfg(SCENARIOS[name])
    learner = make_learner(cfg, rank=rank, world_size=world_size)
    seen = []
    for step in range(2):
        if name == "examples" and step == 0:
            seen.append(learner.supervise(EXAMPLES + EXAMPLES[::-1]))
            continue
        groups = make_groups(make_model(cfg.actor.model), seed=step, version=step)
        if name == "turns of agents":
            groups = make_episodes(make_model(cfg.actor.model), seed=step)
        if name == "one rank has nothing":
            groups = groups[:1]
        if name == "groups of any size":
            groups = uneven(groups)
        # They arrive anywhere, in any order.
        own = groups[::-1][rank::world_size]
        if name == "stream":
            of_batch, of_update = learner.stream(iter(own), len(groups))
        else:
            of_batch, of_update = learn(learner, own)
        seen.append({**of_batch, **of_update})
    tensors = weights(learner)
    sent = {}
    if isinstance(learner.engine.model, CausalLM):
        from rlinf.hybrid_engines.fsdp.sharding import whole

        sent = {n: t.clone() for n, t in learner.engine.model.policy_tensors(whole)}
    return seen, tensors, sent


def run_rank(rank):
    return {name: train(name, rank, 2) for name in SCENARIOS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks got in each scenario."""
    return run_two_ranks(run_rank, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks_do_what_one_does(ranks, name):
    metrics, expected, sent = train(name)
    for rank in ranks:
        own_metrics, own, own_sent = rank[name]
        assert distance(own, expected) < 2e-5
        assert distance(own_sent, sent) < 2e-5
        for one, other in zip(own_metrics, metrics, strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert distance(ranks[0][name][1], ranks[1][name][1]) == 0.0
