"""DiffusionNFT on rollouts: what an update does to velocities, and what has no say in it."""

from __future__ import annotations

import pytest
import torch

from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.nft_learner import NFTLearner
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    distance,
    learn,
    make_cfg,
    make_policy,
    rollout,
    weights,
)

NFT = {
    **GRPO,
    "algorithm.loss_type": "embodied_nft",
    "algorithm.update_epoch": 4,
    "actor.model.model_type": "flow_policy",
    "actor.model.num_action_chunks": 3,
    "actor.model.num_steps": 3,
    "actor.model.action_horizon": 4,
    "env.train.max_episode_steps": 36,
}


def make_nft(changes=None):
    torch.set_num_threads(1)
    cfg = make_cfg({**NFT, **(changes or {})})
    return NFTLearner(cfg, make_policy(cfg), LearnerPlace(torch.device("cpu"), seed=3))


def half_well(policy):
    """Of each group of four, half did well."""
    batch = rollout(policy)
    batch.rewards.zero_()
    batch.terminations.zero_()
    batch.valid.fill_(True)
    batch.rewards[-1, ::2, -1] = 1.0
    return batch


def errors(policy, batch):
    """How far velocities are from those that lead to the plans of the rollout, `[T, B]`."""
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    plans, g = inputs["chain"][:, -1], torch.Generator().manual_seed(9)
    time = torch.rand(len(plans), 16, generator=g)
    noise = torch.randn(len(plans), 16, plans.shape[1], generator=g)
    x = time[..., None] * noise + (1 - time[..., None]) * plans[:, None]
    with torch.no_grad():
        velocity = policy(forward_type="nft", forward_inputs=inputs, x=x, time=time)
    error = (velocity - (noise - plans[:, None])).square()[..., :6].mean((1, 2))
    return error.view(batch.rewards.shape[:2])


@pytest.mark.parametrize("further", [{}, {"algorithm.nft": {"form": "dpo", "weight": "adaptive"}}])
def test_velocities_lead_to_good_plans_and_away_from_bad_ones(further):
    learner = make_nft(further)
    policy = learner.engine.model
    batch = half_well(policy)
    before = errors(policy, batch)
    _, metrics = learn(learner, batch)
    change = errors(policy, batch) - before
    assert float(change[:, ::2].mean()) < float(change[:, 1::2].mean())
    assert metrics["actor/velocity_change"] > 0 and learner.version == 1


def test_what_was_not_carried_out_changes_nothing():
    found = []
    for garbage in (0.0, 50.0):
        learner = make_nft()
        batch = half_well(learner.engine.model)
        batch.valid[3:, 1] = False
        batch.forward_inputs["chain"][3:, 1] += garbage
        learn(learner, batch)
        found.append(weights(learner))
    assert distance(*found) == 0.0


def test_micro_batches_change_nothing():
    found = []
    for size in (None, 8):
        learner = make_nft({"actor.micro_batch_size": size})
        learn(learner, half_well(learner.engine.model))
        found.append(weights(learner))
    assert distance(*found) < 1e-5


def test_a_resumed_learner_draws_the_same():
    whole = make_nft()
    batch = half_well(whole.engine.model)
    learn(whole, batch)
    state, kept = whole.state(), {k: v.clone() for k, v in whole.engine.model.state_dict().items()}
    other = make_nft()
    other.load_state(state)
    other.engine.model.load_state_dict(kept)
    first, second = (item._draws.get_state() for item in (whole, other))
    assert torch.equal(first, second) and other.version == 1


def test_a_policy_without_velocities_is_refused():
    cfg = make_cfg()
    with pytest.raises(ValueError, match="has no forward type 'nft'; use flow_policy"):
        NFTLearner(cfg, make_policy(cfg), LearnerPlace(torch.device("cpu")))
