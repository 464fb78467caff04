"""DiffusionNFT on rollouts: what an update does to velocities, and what has no say in it."""

from __future__ import annotations

import pytest
import torch

from rlinf.config import ConfigError
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.nft_learner import NFTLearner
from tests.unit_tests.models.flow_vla.policies import section
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

VLA = {
    "actor.model": section("smolvla", num_images_in_input=0, num_action_chunks=3, action_horizon=4),
    "actor.optim.lr": 1e-3,
}
"""Changes that make it a policy with an action expert, whose plans are padded."""


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
    error = policy.executed(velocity - (noise - plans[:, None])).square().mean((1, 2, 3))
    return error.view(batch.rewards.shape[:2])


@pytest.mark.parametrize(
    "further", [{}, {"algorithm.nft": {"form": "dpo", "weight": "adaptive"}}, VLA]
)
def test_velocities_lead_to_good_plans_and_away_from_bad_ones(further):
    learner = make_nft(further)
    policy = learner.engine.model
    batch = half_well(policy)
    before = errors(policy, batch)
    _, metrics = learn(learner, batch)
    change = errors(policy, batch) - before
    assert float(change[:, ::2].mean()) < float(change[:, 1::2].mean())
    assert metrics["actor/velocity_change"] > 0 and learner.version == 1


@pytest.mark.parametrize("further", [{}, VLA])
def test_what_was_not_carried_out_changes_nothing(further):
    found = []
    for garbage in (0.0, 50.0):
        learner = make_nft(further)
        batch = half_well(learner.engine.model)
        batch.valid[3:, 1] = False
        batch.forward_inputs["chain"][3:, 1] += garbage
        learn(learner, batch)
        found.append(weights(learner))
    assert distance(*found) == 0.0


@pytest.mark.parametrize("further", [{}, VLA])
def test_plans_beyond_the_range_teach_what_the_env_took(further):
    found = []
    for clipped in (False, True):
        learner = make_nft(further)
        policy = learner.engine.model
        batch = half_well(policy)
        plans = batch.forward_inputs["chain"][:, :, -1]
        plans[:, ::3] *= 40.0
        inside = policy.within_range(plans.flatten(0, 1)).view_as(plans)
        again = policy.within_range(inside.flatten(0, 1)).view_as(plans)
        torch.testing.assert_close(again, inside)
        assert float((plans - inside).abs().max()) > 10.0
        if clipped:
            plans.copy_(inside)
        learn(learner, batch)
        found.append(weights(learner))
    assert distance(*found) < 1e-6


@pytest.mark.parametrize("alike", [False, True])
def test_long_episodes_may_count_for_no_more_than_short_ones(alike):
    """Then the loss is the mean over episodes of what each of them has alone."""
    mode = "seq-mean-token-mean" if alike else "token-mean"
    learner = make_nft({"algorithm.loss_agg_func": mode})
    batch = half_well(learner.engine.model)
    batch.valid[3:, ::2] = False
    batch.terminations[2, ::2, -1] = True
    batch.rewards.zero_()
    batch.rewards[2, ::2, -1] = 1.0
    learner.prepare(batch, range(8))
    task = learner._task(*learner._prepared)

    def loss_of(rows):
        return float(task.loss(rows, task.norm(rows, None))[0].detach())

    rows = torch.arange(task.num_samples)
    alone = torch.tensor([loss_of(rows[env::8]) for env in range(8)])
    lengths = batch.valid.sum((0, 2)).float()
    assert lengths.max() > 2 * lengths.min()
    weights = torch.ones(8) if alike else lengths
    expected = float((alone * weights).sum() / weights.sum())
    other = float((alone * lengths).sum() / lengths.sum()) if alike else float(alone.mean())
    assert loss_of(rows) == pytest.approx(expected, rel=1e-5)
    assert abs(other - expected) > 1e-4 * expected


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


@pytest.mark.parametrize("tau", [0.25, [0.5, 0.1, 0, 2]])
def test_a_copy_that_follows_slowly_acts(tau):
    learner = make_nft({"algorithm.nft": {"tau": tau}})
    trained, acting = learner.engine.model, learner.engine.reference
    slow = {name: p.detach().clone() for name, p in acting.named_parameters()}
    for share in (0.25, 0.25) if tau == 0.25 else (0.3, 0.1):
        batch = half_well(acting)
        batch.versions.fill_(learner.version)
        # Whoever acts is compared with, and its velocities are the old ones.
        assert learner.agreement(batch)[0]["logprob_max"] < 1e-5
        learner.prepare(batch, range(8))
        task = learner._task(*learner._prepared)
        rows = torch.arange(5)
        with torch.no_grad():
            old = acting(**task._at(rows))
        torch.testing.assert_close(task._old[:5], old)
        assert learner.update()["actor/acting_share"] == pytest.approx(share)
        for name, fast in trained.named_parameters():
            slow[name] = (1 - share) * slow[name] + share * fast.detach()
        found = dict(acting.named_parameters())
        assert all(torch.allclose(found[name], slow[name], atol=1e-6) for name in slow)
    assert any(not torch.equal(found[name], p) for name, p in trained.named_parameters())
    with learner.acting_policy() as policy:
        assert policy is acting
    sent = dict(learner._acting_tensors())
    assert all(torch.equal(sent[name], tensor) for name, tensor in acting.state_dict().items())


@pytest.mark.parametrize("tau", [0.0, 1.5, [0.5, 0.1], [0.5, 0.1, 3, 3], [0.0, 1.0, 0, 9]])
def test_shares_that_are_none_are_refused(tau):
    with pytest.raises(ConfigError, match="above 0 and up to 1, or a list of four"):
        make_cfg({**NFT, "algorithm.nft": {"tau": tau}})


def test_alone_the_trained_policy_acts():
    learner = make_nft()
    assert learner.engine.reference is None and not learner.acts_by_reference


def test_a_policy_without_velocities_is_refused():
    cfg = make_cfg()
    with pytest.raises(ValueError, match="has no forward type 'nft'; use flow_policy"):
        NFTLearner(cfg, make_policy(cfg), LearnerPlace(torch.device("cpu")))
