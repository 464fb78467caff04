"""A rollout as samples to train on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlinf.workers.actor.embodied_samples import EmbodiedSamples, EmbodiedTask, LossSettings
from rlinf.workers.actor.sample_sequences import SampleSequences
from tests.unit_tests.workers.actor.learning import GRPO, make_cfg, make_learner, rollout

TWO_ACTIONS = {"actor.model.num_action_chunks": 2, "algorithm.logprob_type": "action_level"}
BY_ACTION = {
    **TWO_ACTIONS,
    "algorithm.reward_type": "action_level",
    "actor.model.value_type": "action_level",
}
BY_EPISODE = {**GRPO, "algorithm.loss_agg_func": "seq-mean-token-mean"}


def make_task(changes, cut=None):
    """The samples of a rollout in which all actions but one, if it is named, are carried out."""
    cfg = make_cfg(changes)
    learner = make_learner(cfg)
    batch = rollout(learner.engine.model)
    batch.terminations[:] = False
    batch.valid[:] = True
    if cut is not None:
        batch.valid[cut] = False
    learner.prepare(batch, range(8))
    _, credit, _ = learner._prepared
    settings = LossSettings.of(cfg)
    samples = EmbodiedSamples.of(batch, credit, torch.device("cpu"), settings)
    return learner.engine, settings, samples


@pytest.mark.parametrize("changes", [{}, TWO_ACTIONS, BY_ACTION, BY_EPISODE])
def test_where_everything_counts_the_mask_changes_nothing(changes):
    engine, settings, samples = make_task(changes)
    assert samples.whole and samples.mask.all()
    rows = torch.randperm(len(samples.mask), generator=torch.Generator().manual_seed(0))[:40]
    found = []
    for own in (samples, replace(samples, whole=False)):
        each = SampleSequences(1, len(own.mask), 1)
        task = EmbodiedTask(settings, engine, own, version=1, sequences=each)
        loss, metrics = task.loss(rows, task.norm(rows, None))
        engine.backward(loss, last=True)
        gradient = torch.cat([p.grad.flatten().clone() for p in engine.model.parameters()])
        engine.drop_gradients()
        found.append((loss, gradient, {name: each.state for name, each in metrics.items()}))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)
    assert found[0][1].abs().max() > 0


def test_samples_are_not_whole_if_an_action_was_not_carried_out():
    _, _, samples = make_task(TWO_ACTIONS, cut=(3, 5, 1))
    assert not samples.whole and int((~samples.mask).sum()) == 1
    assert not samples.mask[3 * 8 + 5, 1]
