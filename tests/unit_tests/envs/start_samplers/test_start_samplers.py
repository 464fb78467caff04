"""How often tasks are played: by equal shares, by weights, by failures, by a class of one's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlinf.config import ConfigError, build_config, validate_cfg
from rlinf.envs import start_samplers
from rlinf.envs.start_samplers import make_start_sampler, register_start_sampler
from rlinf.envs.start_samplers.base import EpisodeOutcome, StartSampler

TASKS = ["reach", "push", "pull"]


def outcomes(*pairs: tuple[int, bool | None]) -> list[EpisodeOutcome]:
    return [EpisodeOutcome(task, 7 * task, success, 1.5, 10) for task, success in pairs]


def test_shares_are_equal_unless_the_config_says_otherwise():
    assert make_start_sampler(None, TASKS).weights() == [1, 1, 1]
    cfg = {"type": "weighted", "weights": {"push": 3, "pull": 0}}
    sampler = make_start_sampler(cfg, TASKS)
    assert sampler.weights() == [1, 3, 0] and not sampler.adapts
    with pytest.raises(ValueError, match="task 'psh', which is none .* did you mean 'push'"):
        make_start_sampler({"type": "weighted", "weights": {"psh": 1}}, TASKS)


@pytest.mark.parametrize(
    ("kind", "unseen", "share"),
    [("failure_rate", 1.0, lambda f: f), ("learnability", 0.5, lambda f: 4 * f * (1 - f))],
)
def test_failure_rates_are_those_of_a_slow_reference(kind, unseen, share):
    rng = np.random.default_rng(0)
    sampler = make_start_sampler({"type": kind, "floor": 0.1, "memory": 0.7}, TASKS)
    assert sampler.adapts and sampler.weights() == [1, 1, 1]
    rates = {task: unseen for task in range(3)}
    for _ in range(20):
        # A rollout with few episodes, in which a task may be missing.
        seen = [(int(rng.integers(3)), bool(rng.random() < 0.6)) for _ in range(rng.integers(5))]
        sampler.observe(outcomes(*seen))
        for task in rates:
            own = [success for played, success in seen if played == task]
            if own:
                rates[task] = 0.7 * rates[task] + 0.3 * own.count(False) / len(own)
        expected = [0.1 + 0.9 * share(rates[task]) for task in range(3)]
        assert sampler.weights() == pytest.approx(expected, abs=1e-12)
    assert len(set(sampler.weights())) == 3
    with pytest.raises(ValueError, match=f"is {kind}, but the env does not tell"):
        sampler.observe(outcomes((0, None)))


def test_tasks_that_always_end_alike_are_the_least_learnable():
    sampler = make_start_sampler({"type": "learnability", "floor": 0.0, "memory": 0.0}, TASKS)
    sampler.observe(outcomes((0, True), (0, True), (1, False), (2, True), (2, False)))
    assert sampler.weights() == [0, 0, 1]


def test_a_saved_sampler_goes_on_exactly():
    one, two = (make_start_sampler({"type": "failure_rate"}, TASKS) for _ in range(2))
    one.observe(outcomes((0, True), (0, False), (2, True)))
    two.set_state(json.loads(json.dumps(one.get_state())))
    for sampler in (one, two):
        sampler.observe(outcomes((0, True), (1, True)))
    assert one.weights() == two.weights() != [1, 1, 1]


class LastFailed(StartSampler):
    """Plays the task that failed last, and nothing else."""

    def __init__(self, cfg, tasks):
        super().__init__(cfg, tasks)
        self.last = 0

    def weights(self):
        return [float(task == self.last) for task in range(len(self.tasks))]

    def observe(self, outcomes):
        for outcome in outcomes:
            self.last = self.last if outcome.success else outcome.task


def test_a_sampler_of_ones_own_is_found_by_its_name(monkeypatch, several):
    monkeypatch.setattr(start_samplers.start_sampler_registry, "_items", {})
    register_start_sampler("last_failed", LastFailed)
    sampler = make_start_sampler({"type": "Last_Failed"}, TASKS)
    sampler.observe(outcomes((2, False), (1, True)))
    assert sampler.weights() == [0, 0, 1]
    env = several(4, start_sampler={"type": "last_failed"})
    assert (env.reset()[1]["reset_state_ids"] % 3 == 0).all()
    cfg = build_config(
        "metaworld_ppo_mlp", ["env.train.task=MT10", "+env.train.start_sampler.type=last_failed"]
    )
    assert validate_cfg(cfg).env.train.start_sampler.type == "last_failed"
    with pytest.raises(ValueError, match="observe"):
        register_start_sampler("bad", type("Bad", (LastFailed,), {"observe": lambda self: None}))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("+env.train.start_sampler.type=failure", "did you mean 'failure_rate'"),
        ("+env.train.start_sampler={type: failure_rate, floor: 2}", "at most 1"),
        (
            "+env.train.start_sampler={type: weighted, weights: {reach-v3: -1}}",
            "must be at least 0",
        ),
        ("+env.train.start_sampler={type: uniform, floor: 0.1}", "floor"),
        (
            "+env.train.start_sampler={type: weighted, weights: {reech-v3: 2}}",
            "near ones: reach-v3",
        ),
        (
            "+env.train.start_sampler={type: weighted, weights: {reach-v3: 2}}",
            "names reach-v3, but the tasks are button-press-v3",
        ),
    ],
)
def test_mistakes_are_told_before_anything_starts(override, said):
    with pytest.raises(ConfigError, match=said):
        validate_cfg(build_config("metaworld_ppo_mlp", [override]))
