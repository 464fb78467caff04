"""Counts of rewards and failures."""

import random

import pytest

from rlinf.data.reasoning import Sample
from rlinf.utils.processes.pool import Outcome
from rlinf.workers.reward.tally import RewardTally


def scored(reward: float, **info) -> Sample:
    return Sample(0, 0, [], [], [], [], "stop", reward, {"score": reward, **info})


def test_everything_is_counted():
    dice = random.Random(0)
    outcomes = [Outcome("ok", {"info": {"answered": 1.0}}, seconds=0.1)]
    outcomes += [Outcome(s, message=s) for s in ("timeout", "crash", "error", "output")]
    drawn = [(dice.choice("ab"), scored(dice.random()), dice.choice(outcomes)) for _ in range(60)]
    whole = RewardTally()
    for task, sample, outcome in drawn:
        whole.add(task, sample, outcome)
    metrics = whole.metrics()
    statuses = [outcome.status for _, _, outcome in drawn]
    names = {"timeouts": "timeout", "crashes": "crash", "errors": "error", "floods": "output"}
    for name, status in names.items():
        assert metrics[f"reward/{name}"] == statuses.count(status)
    mean = sum(sample.reward for task, sample, _ in drawn if task == "a")
    mean /= sum(task == "a" for task, _, _ in drawn)
    assert metrics["reward/score/a"] == pytest.approx(mean)
    assert metrics["reward/answered"] == 1.0
    assert metrics["reward/seconds_max"] == 0.1


def test_nothing_counted_is_no_mean():
    metrics = RewardTally().metrics()
    assert metrics["reward/timeouts"] == 0.0 and "reward/score" not in metrics
