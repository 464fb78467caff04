"""Which steps of a rollout count, and how much."""

import pytest
import torch

from tests.unit_tests.workers.actor.learning import (
    GRPO,
    columns,
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

FILTER = {**GRPO, "algorithm.filter_rewards": True}


def graded(policy, means, seed=1):
    """A rollout of groups of four whose mean returns, of one episode each, are these."""
    batch = rollout(policy, envs=4 * len(means), seed=seed)
    batch.terminations[:] = False
    returns = batch.rewards.sum((0, 2)).view(-1, 4)
    shift = torch.tensor(means).unsqueeze(1) - returns.mean(1, keepdim=True)
    batch.rewards[0, :, 0] += shift.expand(-1, 4).reshape(-1)
    return batch


def test_groups_outside_of_the_bounds_change_nothing():
    cfg = make_cfg(
        {**FILTER, "algorithm.rewards_lower_bound": 0.5, "algorithm.rewards_upper_bound": 4.5}
    )
    learner, other = make_learner(cfg), make_learner(cfg)
    batch = graded(learner.engine.model, [0.0, 1.0, 5.0, 4.0])
    kept = columns(batch, [4, 5, 6, 7, 12, 13, 14, 15])
    rollout_metrics, metrics = learn(learner, batch)
    assert rollout_metrics["groups_kept"] == 0.5
    assert learn(other, kept)[0]["groups_kept"] == 1.0
    assert metrics["actor/updates"] == 1
    assert distance(weights(learner), weights(other)) < 1e-6
    # Observations are observations, whatever came of them.
    assert learner.engine.model.normalizer.count == 100 + 12 * 16


@pytest.mark.parametrize(("bounds", "share"), [((None, 2.0), 0.75), ((4.5, None), 0.25)])
def test_one_bound_is_enough(bounds, share):
    low, high = bounds
    keys = {"algorithm.rewards_lower_bound": low, "algorithm.rewards_upper_bound": high}
    learner = make_learner(make_cfg({**FILTER, **keys}))
    batch = graded(learner.engine.model, [0.0, 1.0, 5.0, 2.0 - 1e-3])
    assert learn(learner, batch)[0]["groups_kept"] == share


def test_when_no_group_is_left_no_update_is_made_and_it_is_said():
    learner = make_learner(
        make_cfg(
            {
                **FILTER,
                "algorithm.rewards_lower_bound": 7.0,
                "algorithm.update_epoch": 2,
                "actor.global_batch_size": 48,
                "actor.optim.weight_decay": 0.1,
            }
        )
    )
    before = weights(learner)
    rollout_metrics, metrics = learn(learner, graded(learner.engine.model, [0.0, 1.0]))
    assert rollout_metrics["groups_kept"] == 0.0 and rollout_metrics["advantages_mean"] == 0.0
    assert metrics["actor/updates"] == 0 and metrics["actor/updates_empty"] == 4
    assert "actor/policy_loss" not in metrics and "actor/grad_norm" not in metrics
    assert distance(before, weights(learner)) == 0.0
    assert learner.version == 1
    assert len(learner.said) == 1 and "no update was made" in learner.said[0]


def test_a_minibatch_without_a_kept_group_is_left_out():
    keys = {"algorithm.shuffle_rollout": False, "actor.global_batch_size": 48}
    learner = make_learner(make_cfg({**FILTER, **keys, "algorithm.rewards_upper_bound": 0.5}))
    batch = graded(learner.engine.model, [0.0, 1.0])
    # Samples are time first: the first half of the steps is the first minibatch.
    batch.valid[:6] = False
    _, metrics = learn(learner, batch)
    assert metrics["actor/updates"] == 1 and metrics["actor/updates_empty"] == 1
    assert learner.said == []


def episodes_of(batch):
    """The steps of each episode, or of its part in the window, as lists of (t, env)."""
    steps, envs = batch.terminations.shape[:2]
    out = []
    for env in range(envs):
        current = []
        for t in range(steps):
            current.append((t, env))
            if batch.terminations[t, env].any() or t == steps - 1:
                out.append(current)
                current = []
    return out


def test_episodes_weigh_alike_whatever_their_length():
    learner = make_learner(make_cfg({"algorithm.loss_agg_func": "seq-mean-token-mean"}))
    batch = rollout(learner.engine.model, seed=4)
    episodes = episodes_of(batch)
    assert len({len(episode) for episode in episodes}) > 2
    _, metrics = learn_keeping_credit(learner, batch)
    advantages = learner.kept.advantages
    means = [sum(-float(advantages[s]) for s in episode) / len(episode) for episode in episodes]
    assert metrics["actor/policy_loss"] == pytest.approx(sum(means) / len(means), rel=1e-4)


def learn_keeping_credit(learner, batch):
    """As `learn`; leaves the credit in `learner.kept`."""
    first = learner.prepare(batch, range(batch.rewards.shape[1]))
    learner.kept = learner._prepared[1]
    return first, learner.update()


def test_sums_over_episodes_are_divided_by_their_number():
    learner = make_learner(make_cfg({"algorithm.loss_agg_func": "seq-mean-token-sum"}))
    batch = rollout(learner.engine.model, seed=4)
    episodes = episodes_of(batch)
    _, metrics = learn_keeping_credit(learner, batch)
    total = -float(learner.kept.advantages.sum())
    assert metrics["actor/policy_loss"] == pytest.approx(total / len(episodes), rel=1e-4)


def test_steps_that_do_not_count_have_no_part_in_the_length_of_an_episode():
    learner = make_learner(make_cfg({"algorithm.loss_agg_func": "seq-mean-token-mean"}))
    batch = rollout(learner.engine.model, seed=4)
    batch.terminations[:] = False
    batch.valid[3:, 0] = False
    _, metrics = learn_keeping_credit(learner, batch)
    advantages = learner.kept.advantages
    expected = [-float(advantages[:3, 0].mean())]
    expected += [-float(advantages[:, env].mean()) for env in range(1, 8)]
    assert metrics["actor/policy_loss"] == pytest.approx(sum(expected) / 8, rel=1e-4)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_micro_batches_change_nothing(mode):
    results = []
    for micro in (None, 8, 32):
        keys = {"algorithm.loss_agg_func": mode, "actor.micro_batch_size": micro}
        learner = make_learner(make_cfg({**keys, "algorithm.kl_beta": 0.2}))
        for seed in range(2):
            learn(learner, rollout(learner.engine.model, seed=seed))
        results.append(weights(learner))
    assert distance(results[0], results[1]) < 1e-5 and distance(results[0], results[2]) < 1e-5


def test_what_masked_steps_hold_does_not_matter():
    cfg = make_cfg(
        {"env.train.auto_reset": False, "algorithm.loss_agg_func": "seq-mean-token-mean"}
    )
    learner, other = make_learner(cfg), make_learner(cfg)
    batch = rollout(learner.engine.model, seed=4)
    batch.terminations[:] = False
    batch.terminations[5, :4] = True
    batch.valid[6:, :4] = False
    changed = columns(batch, slice(None))
    changed.rewards[6:, :4] = 1e3
    changed.prev_values[7:, :4] = -1e3
    changed.forward_inputs["action"][6:, :4] = 50.0
    one, two = learn(learner, batch), learn(other, changed)
    assert distance(weights(learner), weights(other)) < 1e-6
    assert two[0]["advantages_mean"] == pytest.approx(one[0]["advantages_mean"], rel=1e-5)
    assert two[0]["returns"] == pytest.approx(one[0]["returns"], rel=1e-5)


def test_what_somebody_else_chose_is_not_learnt_but_its_reward_counts():
    cfg = make_cfg()
    learner, other = make_learner(cfg), make_learner(cfg)
    batch = rollout(learner.engine.model, seed=4)
    batch.intervened[4, :3] = True
    changed = columns(batch, slice(None))
    changed.forward_inputs["action"][4, :3] = 50.0
    one, two = learn(learner, batch), learn(other, changed)
    assert distance(weights(learner), weights(other)) < 1e-6
    changed.rewards[4, :3] += 5.0
    assert learn(make_learner(cfg), changed)[0]["returns"] > one[0]["returns"] + 0.1
    assert two[0] == one[0]
