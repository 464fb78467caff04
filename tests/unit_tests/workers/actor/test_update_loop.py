"""Which optimiser steps an update makes, and how schedules follow them."""

import math

import pytest
import torch

from tests.unit_tests.workers.actor import reasoning
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

EPOCHS, MINIBATCHES = 4, 3
SPLIT = {"algorithm.update_epoch": EPOCHS, "actor.global_batch_size": 96 // MINIBATCHES}


class Diary:
    """Notes, before each optimiser step, the weights and the divergence of the samples of it."""

    def __init__(self, learner, batch):
        self.learner, self.batch = learner, batch
        self.before, self.divergence = [], []

    def before_step(self, rows):
        inputs = {k: v.flatten(0, 1)[rows] for k, v in self.batch.forward_inputs.items()}
        old = self.batch.prev_logprobs.flatten(0, 1)[rows].sum(-1)
        with torch.no_grad():
            new = self.learner.engine.model.default_forward(inputs)["logprobs"].sum(-1)
        gaps = (new - old).tolist()
        self.divergence.append(sum(math.exp(gap) - 1 - gap for gap in gaps) / len(gaps))
        self.before.append(weights(self.learner))

    def after_step(self):
        pass


def observed(changes=None):
    """A learner after an update that nothing stopped, and the diary of it."""
    learner = make_learner(make_cfg({**SPLIT, **(changes or {})}))
    batch = rollout(learner.engine.model)
    diary = Diary(learner, batch)
    learner.updates.watches.append(diary)
    learn(learner, batch)
    return learner, batch, diary


@pytest.mark.parametrize(("micro_batch", "stop_at"), [(None, 1), (None, 10), (8, 4)])
def test_the_step_that_would_go_too_far_is_not_made(micro_batch, stop_at):
    changes = {"actor.micro_batch_size": micro_batch}
    _, batch, diary = observed(changes)
    # A limit that this minibatch is the first to pass.
    limit = max(diary.divergence[:stop_at]) * 1.0001 + 1e-9
    expected = next(i for i, kl in enumerate(diary.divergence) if kl > limit)
    assert expected >= stop_at
    learner = make_learner(make_cfg({**SPLIT, **changes, "algorithm.target_kl": limit}))
    _, metrics = learn(learner, batch)
    assert metrics["actor/updates"] == learner.engine.steps == expected
    assert metrics["actor/stopped_by_kl"] == 1
    assert distance(weights(learner), diary.before[expected]) == 0.0
    # What stopped it is seen.
    seen = sum(diary.divergence[: expected + 1]) / (expected + 1)
    assert metrics["actor/approx_kl"] == pytest.approx(seen, rel=1e-4)


def test_a_limit_that_is_never_passed_changes_nothing():
    plain, batch, diary = observed()
    limit = max(diary.divergence) * 1.001
    learner = make_learner(make_cfg({**SPLIT, "algorithm.target_kl": limit}))
    _, metrics = learn(learner, batch)
    assert metrics["actor/updates"] == EPOCHS * MINIBATCHES
    assert metrics["actor/stopped_by_kl"] == 0
    assert distance(weights(learner), weights(plain)) == 0.0


def test_what_is_too_far_from_the_start_makes_no_step():
    learner = make_learner(make_cfg({**SPLIT, "algorithm.target_kl": 0.01}))
    batch = rollout(learner.engine.model)
    batch.prev_logprobs += 0.3 * torch.randn_like(batch.prev_logprobs)
    before = weights(learner)
    _, metrics = learn(learner, batch)
    assert metrics["actor/updates"] == 0 and metrics["actor/stopped_by_kl"] == 1
    assert metrics["actor/approx_kl"] > 0.01
    assert distance(weights(learner), before) == 0.0


LINEAR = {"lr": 1e-2, "weight_decay": 0.0, "lr_scheduler": "linear", "min_lr": 1e-3}
UNFINISHED = {
    "divergence": {**SPLIT, "algorithm.target_kl": 1e-4},
    "nothing that counts": {
        **GRPO,
        **SPLIT,
        "algorithm.filter_rewards": True,
        "algorithm.rewards_lower_bound": 100.0,
    },
    "gradients that are not finite": {**SPLIT, "runner.on_nan": "skip"},
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_schedules_finish_though_updates_do_not(case):
    cfg = make_cfg({**UNFINISHED[case], "actor.optim": LINEAR})
    planned = 3 * EPOCHS * MINIBATCHES
    learner = make_learner(cfg, total_steps=planned)
    for step in range(3):
        batch = rollout(learner.engine.model, seed=step)
        if case.startswith("gradients"):
            batch.forward_inputs["action"][:, 0] = math.nan
        learn(learner, batch)
        done = (step + 1) / 3
        expected = 1e-2 + done * (1e-3 - 1e-2)
        assert learner.engine.optimizer.param_groups[0]["lr"] == pytest.approx(expected)
    assert learner.engine.steps < planned == learner.engine.progress


def test_each_step_uses_the_rate_of_its_place_in_the_schedule():
    used = []

    class Rates(Diary):
        def before_step(self, rows):
            used.append(self.learner.engine.optimizer.param_groups[0]["lr"])

    cfg = make_cfg({**SPLIT, "actor.optim": {**LINEAR, "lr_warmup_steps": 2}})
    planned = EPOCHS * MINIBATCHES
    learner = make_learner(cfg, total_steps=planned)
    batch = rollout(learner.engine.model)
    learner.updates.watches.append(Rates(learner, batch))
    _, metrics = learn(learner, batch)
    falling = [1e-2 - (1e-2 - 1e-3) * i / (planned - 2) for i in range(planned - 2)]
    assert used == pytest.approx([0.5e-2, 1e-2, *falling])
    assert metrics["actor/lr"] == pytest.approx(sum(used) / planned)


def test_a_learner_that_goes_on_has_the_schedule_where_it_was():
    cfg = make_cfg({**SPLIT, "algorithm.target_kl": 1e-4, "actor.optim": LINEAR})
    learner, other = (make_learner(cfg, total_steps=50) for _ in range(2))
    learn(learner, rollout(learner.engine.model))
    other.load_state(learner.state())
    assert other.engine.progress == EPOCHS * MINIBATCHES > other.engine.steps
    rates = [each.engine.optimizer.param_groups[0]["lr"] for each in (learner, other)]
    assert rates[0] == rates[1] < 1e-2


def test_responses_stop_and_finish_alike():
    changes = {
        "algorithm.n_minibatches": 2,
        "algorithm.update_epoch": 3,
        "algorithm.target_kl": 1e-3,
        "actor.micro_batch_size": 4,
        "actor.optim": {**LINEAR, "adam_eps": 1e-3},
    }
    learner = reasoning.make_learner(reasoning.make_cfg(changes), total_steps=12)
    for seed in range(2):
        learner.prepare(reasoning.make_groups(learner.engine.model, seed=seed))
        metrics = learner.update()
        assert metrics["actor/stopped_by_kl"] == 1 and 0 < metrics["actor/updates"] < 6
    assert learner.engine.progress == 12 > learner.engine.steps
    assert learner.engine.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_the_schedule_of_a_policy_that_waits_for_its_critic_finishes():
    changes = {
        **reasoning.CRITIC,
        "algorithm.critic_warmup_steps": 2,
        "actor.optim": LINEAR,
    }
    learner = reasoning.make_learner(reasoning.make_cfg(changes), total_steps=3)
    for seed in range(3):
        learner.prepare(reasoning.make_groups(learner.engine.model, seed=seed))
        learner.update()
    assert learner.engine.steps == 1
    assert learner.engine.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_a_global_batch_of_responses_makes_minibatches():
    cfg = reasoning.make_cfg({"actor.global_batch_size": 8})
    learner = reasoning.make_learner(cfg)
    learner.prepare(reasoning.make_groups(learner.engine.model))
    assert learner.update()["actor/updates"] == 2
