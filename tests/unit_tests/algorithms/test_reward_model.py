"""Reward models: the loss, how they are judged, and what they reward, against slow references."""

import math

import pytest
import torch

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import merge_metrics, reduce_metrics
from rlinf.algorithms.reward_model import (
    class_weights,
    classification_loss,
    classification_scores,
    model_rewards,
)


def samples(count=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, generator=generator, dtype=torch.float64)
    return logits, torch.rand(count, generator=generator) < 0.3


def test_the_loss_is_the_weighted_cross_entropy_however_it_is_cut():
    logits, labels = samples()
    weights = class_weights(labels)
    terms = []
    for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
        p = 1 / (1 + math.exp(-z))
        same = sum(other == y for other in labels.tolist())
        terms.append(len(labels) / (2 * same) * -math.log(p if y else 1 - p))
    parts = [
        classification_loss(
            logits=logits[rows], labels=labels[rows], weights=weights, norm=LossNorm(23, 23)
        )
        for rows in torch.arange(23).split([5, 11, 7])
    ]
    assert sum(float(loss) for loss, _ in parts) == pytest.approx(sum(terms) / 23)
    told = reduce_metrics(merge_metrics(metrics for _, metrics in parts))
    right = sum((z >= 0) == y for z, y in zip(logits.tolist(), labels.tolist(), strict=True))
    assert told == pytest.approx({"actor/loss": sum(terms) / 23, "actor/accuracy": right / 23})


def test_both_classes_have_the_same_weight():
    labels = torch.tensor([True, False, False, False])
    low, high = class_weights(labels)
    assert high == 3 * low and 3 * low + high == pytest.approx(4)


def test_scores_are_those_of_all_pairs():
    logits, labels = samples(40, seed=1)
    logits = (2 * logits).round() / 2  # with ties
    pairs = [(a, b) for a in logits[labels].tolist() for b in logits[~labels].tolist()]
    area = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    scores = classification_scores(logits, labels, 0.6)
    assert scores["auc"] == pytest.approx(area)
    found = [1 / (1 + math.exp(-z)) >= 0.6 for z in logits.tolist()]
    both = list(zip(found, labels.tolist(), strict=True))
    assert scores["accuracy"] == pytest.approx(sum(f == y for f, y in both) / 40)
    assert scores["precision"] == pytest.approx(sum(f and y for f, y in both) / sum(found))
    assert scores["recall"] == pytest.approx(sum(f and y for f, y in both) / int(labels.sum()))


def slow_rewards(chances, valid, ended, mode, threshold, probability):
    out = torch.zeros(valid.shape)
    for step in range(valid.shape[0]):
        for env in range(valid.shape[1]):
            done = [c for c in range(valid.shape[2]) if valid[step, env, c]]
            if not done or (mode == "terminal" and not ended[step, env]):
                continue
            p = float(chances[step, env])
            out[step, env, done[-1]] = p if probability else float(p >= threshold)
    return out


@pytest.mark.parametrize("probability", [False, True])
@pytest.mark.parametrize("mode", ["per_step", "terminal"])
def test_a_chunk_is_rewarded_once_for_what_it_led_to(mode, probability):
    generator = torch.Generator().manual_seed(2)
    chances = torch.rand(6, 5, generator=generator)
    # Actions after the end of an episode are not carried out; envs that rest carry out none.
    carried = torch.randint(0, 4, (6, 5, 1), generator=generator)
    valid = torch.arange(3) < carried
    ended = torch.rand(6, 5, generator=generator) < 0.3
    got = model_rewards(
        chances,
        valid,
        ended,
        reward_mode=mode,
        reward_threshold=0.4,
        use_reward_prob=probability,
    )
    assert torch.equal(got, slow_rewards(chances, valid, ended, mode, 0.4, probability))
    assert got.any() and not got[~valid].any()
