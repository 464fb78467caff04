"""What turns weigh in the loss, against means that are written out."""

import itertools
import random
from statistics import fmean

import pytest
import torch

from rlinf.algorithms.loss_scales import loss_scales

LEVELS = ("group_level", "agent_level", "turn_level")
CHOICES = [c for n in range(4) for c in itertools.combinations(LEVELS, n)]


def make_tokens(seed, episodes=3):
    """Tokens as (episode, agent, turn, counts, loss), each turn of one agent."""
    draw = random.Random(seed)
    tokens = []
    for episode in range(episodes):
        for turn in range(draw.randint(1, 6)):
            agent = draw.randint(0, 2)
            for _ in range(draw.randint(1, 5)):
                tokens.append((episode, agent, turn, draw.random() < 0.7, draw.uniform(-1, 1)))
    return tokens


def slow(levels, tokens):
    """The formula of the module, one mean inside the other."""
    episodes: dict = {}
    for episode, agent, turn, counts, loss in tokens:
        if counts:
            episodes.setdefault(episode, {}).setdefault(agent, {}).setdefault(turn, []).append(loss)
    total = turns = 0
    for agents in episodes.values():
        of_episode = []
        for of_agent in agents.values():
            means = [fmean(losses) for losses in of_agent.values()]
            everything = [loss for losses in of_agent.values() for loss in losses]
            mean = fmean(everything) if "turn_level" in levels else fmean(means)
            turns += len(means)
            of_episode.append(mean if "agent_level" in levels else mean * len(means))
        total += fmean(of_episode) if "agent_level" in levels else sum(of_episode)
    return total / (len(episodes) if "group_level" in levels else turns)


def tensors(tokens):
    episodes, agents, turns, mask, losses = (
        torch.tensor(each) for each in zip(*tokens, strict=True)
    )
    return {"episodes": episodes, "agents": agents, "turns": turns, "mask": mask}, losses.double()


def loss_of(levels, tokens):
    names, losses = tensors(tokens)
    scales = loss_scales(levels, **names)
    return float((scales.weights.double() * losses).sum() / scales.shares.sum())


@pytest.mark.parametrize("levels", CHOICES)
@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_the_mean_of_means(levels, seed):
    tokens = make_tokens(seed)
    assert loss_of(levels, tokens) == pytest.approx(slow(levels, tokens), abs=1e-6)


@pytest.mark.parametrize("levels", CHOICES)
def test_the_order_of_tokens_and_parts_of_a_batch_have_no_effect(levels):
    tokens = make_tokens(7)
    names, losses = tensors(tokens)
    whole = loss_scales(levels, **names)
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
    mixed = loss_scales(levels, **{name: values[order] for name, values in names.items()})
    assert torch.equal(mixed.weights, whole.weights[order])
    assert torch.equal(mixed.shares, whole.shares[order])
    # Each episode by itself: what it adds to both sums is the same.
    for episode in names["episodes"].unique():
        where = names["episodes"] == episode
        alone = loss_scales(levels, **{name: values[where] for name, values in names.items()})
        assert torch.equal(alone.weights, whole.weights[where])
        assert torch.equal(alone.shares, whole.shares[where])


def test_a_batch_in_which_nothing_counts_weighs_nothing():
    names = {name: torch.zeros(3, dtype=torch.int64) for name in ("episodes", "agents", "turns")}
    for levels in CHOICES:
        scales = loss_scales(levels, **names, mask=torch.zeros(3, dtype=torch.bool))
        assert not scales.weights.any() and not scales.shares.any()


def test_an_agent_that_talks_more_weighs_no_more():
    def of(repeats):
        tokens = [(0, 0, 0, True, 1.0)]
        tokens += [(0, 1, 1 + i, True, 0.0) for i in range(repeats)]
        return loss_of(("group_level", "agent_level"), tokens)

    assert of(1) == pytest.approx(0.5) and of(10) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "levels", [("turn_level", "agent_level"), ("group",), ("agent_level",) * 2]
)
def test_levels_have_names_and_an_order(levels):
    names = tensors(make_tokens(0))[0]
    with pytest.raises(ValueError, match="algorithm.loss_scales .*group_level, agent_level"):
        loss_scales(levels, **names)
