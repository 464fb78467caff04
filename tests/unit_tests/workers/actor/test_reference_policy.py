"""The policy is held near the one it began as."""

import copy
import math

import pytest
import torch

from rlinf.algorithms.kl import kl_penalised_rewards
from rlinf.algorithms.masks import until_first_done
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    distance,
    learn,
    make_cfg,
    make_learner,
    make_policy,
    rollout,
    weights,
)

KL = {
    "k1": lambda d: -d,
    "k2": lambda d: 0.5 * d * d,
    "k3": lambda d: math.exp(d) - d - 1,
}


def logprobs(policy, batch):
    """Log-probabilities of the chunks of a rollout, [T, B]."""
    with torch.no_grad():
        return policy.default_forward(batch.forward_inputs)["logprobs"].sum(-1)


@pytest.mark.parametrize("kind", KL)
@pytest.mark.parametrize("recipe", [{}, GRPO], ids=["ppo", "grpo"])
def test_the_metric_is_the_divergence_from_the_initial_policy(kind, recipe):
    # The loss refuses k1, which has no gradient.
    place = "reward" if kind == "k1" else "loss"
    keys = {"algorithm.kl_beta": 0.1, "algorithm.kl_penalty_type": kind, "algorithm.kl_in": place}
    cfg = make_cfg({**recipe, **keys})
    learner = make_learner(cfg)
    initial = copy.deepcopy(learner.engine.model)
    _, first = learn(learner, rollout(initial, seed=1))
    assert first["actor/kl_ref"] == pytest.approx(0.0, abs=1e-6)
    batch = rollout(learner.engine.model, seed=2)
    now, then = logprobs(learner.engine.model, batch), logprobs(initial, batch)
    if not cfg.env.train.auto_reset:  # An env whose episode has ended waits.
        ends = (batch.terminations | batch.truncations).any(-1)
        batch.valid &= until_first_done(ends)[..., None]
    counts = batch.valid.all(-1)
    expected = [KL[kind](float(b - a)) for a, b in zip(now[counts], then[counts], strict=True)]
    _, second = learn(learner, batch)
    assert second["actor/kl_ref"] == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def test_a_greater_weight_keeps_the_policy_nearer_to_the_initial_one():
    gone = []
    for beta in (0.0, 1.0, 30.0):
        learner = make_learner(make_cfg({"algorithm.kl_beta": beta, "algorithm.update_epoch": 8}))
        initial = copy.deepcopy(learner.engine.model)
        for seed in range(3):
            learn(learner, rollout(learner.engine.model, seed=seed))
        batch = rollout(learner.engine.model, seed=9)
        difference = logprobs(initial, batch) - logprobs(learner.engine.model, batch)
        gone.append(float((difference.expm1() - difference).mean()))
    assert gone[0] > 1.2 * gone[1] > 1.5 * gone[2]


def test_the_reference_keeps_the_statistics_of_observations_that_it_began_with():
    cfg = make_cfg({"algorithm.kl_beta": 0.1})
    learner = make_learner(cfg)
    batch = rollout(make_policy(cfg), seed=1)
    learner.prepare(batch, range(8))
    before = learner._prepared[2]
    learner.update()
    assert learner.engine.model.normalizer.count == 100 + 12 * 8
    assert learner.engine.reference.normalizer.count == 100
    learner.prepare(batch, range(8))
    assert torch.equal(learner._prepared[2], before)


def test_without_a_weight_there_is_no_reference():
    assert make_learner(make_cfg()).engine.reference is None
    assert make_learner(make_cfg({"algorithm.reinpp_kl_beta": 0.1})).engine.reference is None


@pytest.mark.parametrize("chunks", [1, 3])
def test_divergence_in_the_reward_is_taken_from_the_rewards(chunks):
    keys = {
        "actor.model.num_action_chunks": chunks,
        "actor.model.value_type": "action_level",
        "algorithm.reward_type": "action_level",
        "algorithm.logprob_type": "action_level",
    }
    cfg = make_cfg({**keys, "algorithm.kl_beta": 0.5, "algorithm.kl_in": "reward"})
    learner = make_learner(cfg)
    initial = copy.deepcopy(learner.engine.model)
    learn(learner, rollout(initial, seed=1))
    batch = rollout(learner.engine.model, seed=2)
    learner.prepare(batch, range(8))
    advantages = learner._prepared[1].advantages

    with torch.no_grad():
        reference = initial.default_forward(batch.forward_inputs)["logprobs"]
    per_action = (12, 8, chunks, 2)
    batch.rewards = kl_penalised_rewards(
        batch.rewards,
        logprobs=batch.prev_logprobs.view(per_action).sum(-1),
        ref_logprobs=reference.view(per_action).sum(-1),
        kl_beta=0.5,
        kl_penalty_type="low_var_kl",
    )
    plain = make_learner(make_cfg(keys))
    plain.prepare(batch, range(8))
    torch.testing.assert_close(advantages, plain._prepared[1].advantages)
    metrics = learner.update()
    assert metrics["actor/kl_ref"] > 0


def test_reinforce_plus_plus_penalises_each_step():
    keys = {"algorithm.adv_type": "reinpp", **{k: v for k, v in GRPO.items() if "adv" not in k}}
    moved = []
    for beta in (0.0, 0.5):
        learner = make_learner(make_cfg({**keys, "algorithm.reinpp_kl_beta": beta}))
        learn(learner, rollout(learner.engine.model, seed=1))
        begin = weights(learner)
        learn(learner, rollout(learner.engine.model, seed=2))
        moved.append({name: tensor - begin[name] for name, tensor in weights(learner).items()})
    assert distance(*moved) > 1e-5


def test_a_reference_that_waits_on_the_host_is_fetched_and_sent_back():
    keys = {"algorithm.kl_beta": 0.1, "actor.offload_reference": True}
    learner = make_learner(make_cfg(keys))
    moves, asks = [], []
    reference, infer = learner.engine.reference, learner.engine.infer
    reference.to = lambda device: moves.append(str(device))
    learner.engine.infer = lambda **kwargs: (asks.append(len(moves)), infer(**kwargs))[1]
    learner.prepare(rollout(learner.engine.model), range(8))
    assert moves == ["cpu", "cpu"] and asks == [1]
