"""Responses that the policy wrote in part, in groups of any size."""

import math

import pytest
import torch

from rlinf.algorithms.registry import register_advantage
from rlinf.models.causal_lm.layout import Sequences
from tests.unit_tests.workers.actor.reasoning import (
    GAE,
    distance,
    learn,
    make_cfg,
    make_groups,
    make_learner,
    make_model,
    uneven,
    weights,
)
from tests.unit_tests.workers.actor.test_reasoning_learner import RECIPES

WAYS = {
    **RECIPES,
    "value head": GAE,
    "divergence in the reward": {"algorithm.kl_beta": 0.1, "algorithm.kl_in": "reward"},
    "reinforce++": {
        "algorithm.adv_type": "reinpp",
        "algorithm.use_reinpp_baseline": True,
        "algorithm.kl_beta": 0.1,
    },
}


def with_prefix(groups, count=3):
    """The same sequences; what was the first part of each response is marked as not its own."""
    for group in groups:
        for sample in group.samples:
            first = min(count, len(sample.response_ids) - 1)
            rest = len(sample.response_ids) - first
            sample.loss_mask = [False] * first + [True] * rest
            sample.logprobs = [math.nan] * first + sample.logprobs[first:]
    return groups


def moved_into_the_prompt(groups):
    """The same, with what is not the policy's own as the end of a longer prompt."""
    for group in groups:
        for sample in group.samples:
            first = sample.loss_mask.index(True)
            sample.prompt_ids = sample.prompt_ids + sample.response_ids[:first]
            for name in ("response_ids", "logprobs", "versions"):
                setattr(sample, name, getattr(sample, name)[first:])
            sample.loss_mask = None
    return groups


@pytest.mark.parametrize("way", WAYS)
def test_masked_tokens_are_read_as_a_prompt_is(way):
    cfg = make_cfg(WAYS[way])
    ends = []
    for change in (with_prefix, lambda groups: moved_into_the_prompt(with_prefix(groups))):
        learner = make_learner(cfg)
        for step in range(2):
            groups = make_groups(make_model(cfg.actor.model), seed=step, version=step)
            of_batch, of_update = learn(learner, change(uneven(groups)))
        ends.append((of_batch, of_update, weights(learner)))
    (batch, update, own), (other_batch, other_update, other) = ends
    assert distance(own, other) < 2e-6
    assert update == pytest.approx(other_update, rel=1e-4, abs=1e-6)
    assert batch.pop("prompt_length") < other_batch.pop("prompt_length")
    assert batch == pytest.approx(other_batch, rel=1e-4, abs=1e-6)


def test_text_of_a_tool_between_tokens_is_in_no_loss():
    """The gradient is that of a loop over the tokens that the policy wrote."""
    learner = make_learner(make_cfg())
    model = learner.engine.model
    groups = uneven(make_groups(model))
    for group in groups:
        for sample in group.samples:
            sample.loss_mask = [place % 3 != 1 for place in range(len(sample.response_ids))]
    learner.prepare(groups)
    task, rows = learner._task(learner._samples), torch.arange(4 + 3 + 2 + 1)
    loss, _ = task.loss(rows, task.norm(rows, None))
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    total, count = 0.0, 0
    for group in groups:
        rewards = torch.tensor([sample.reward for sample in group.samples])
        for sample in group.samples:
            signal = len(rewards) > 1 and bool(rewards.std() > 0)
            advantage = (sample.reward - rewards.mean()) / (rewards.std() + 1e-6) if signal else 0.0
            tokens = torch.tensor(sample.prompt_ids + sample.response_ids)
            lengths = torch.tensor([len(sample.prompt_ids)]), torch.tensor([len(tokens)])
            lengths = lengths[0], lengths[1] - lengths[0]
            logprobs = model(Sequences(tokens, *lengths), temperature=0.8)["logprobs"]
            for logprob, own in zip(logprobs, sample.loss_mask, strict=True):
                count += own
                total = total - own * advantage * logprob
    (total / count).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_an_advantage_that_needs_equal_groups_says_so():
    @register_advantage("best of neighbours", replaces=True)
    def best(*, rewards, group_size, loss_mask=None):
        return rewards, None

    learner = make_learner(make_cfg({"algorithm.adv_type": "best of neighbours"}))
    learn(learner, make_groups(learner.engine.model))
    with pytest.raises(ValueError, match="takes groups of group_size 4, .* have 1 to 4"):
        learner.prepare(uneven(make_groups(learner.engine.model)))
