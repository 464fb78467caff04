"""What a run makes of the episodes of its tasks: metrics by task, weights, and what it saves."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from rlinf.envs.start_samplers.base import EpisodeOutcome
from rlinf.runners.task_starts import TaskStarts

TASKS = ("reach", "push", "pull")


def starts(tasks=TASKS, **sampler) -> TaskStarts:
    made = TaskStarts(OmegaConf.create({"env": {"train": {"start_sampler": sampler}}}))
    made.begin(tasks)
    return made


def results(*workers: list[tuple[int, bool | None, float]]) -> list[dict]:
    return [
        {"outcomes": [EpisodeOutcome(task, 0, success, ret, 5) for task, success, ret in own]}
        for own in workers
    ]


def test_each_episode_counts_once_for_its_task():
    seen = results([(0, True, 1.0), (0, False, 4.0), (2, True, 7.0)], [], [(0, False, 1.0)])
    own = starts(type="uniform")
    assert own.note(seen) == {
        "env/episodes/reach": 3.0,
        "env/episodes/push": 0.0,
        "env/episodes/pull": 1.0,
        "env/success_once/reach": pytest.approx(1 / 3),
        "env/success_once/pull": 1.0,
        "env/return/reach": 2.0,
        "env/return/pull": 7.0,
    }
    assert own.weights is None, "shares that never change are not sent"
    assert "env/success_once/reach" not in starts().note(results([(0, None, 1.0)]))


def test_a_single_task_has_no_metrics_of_its_own():
    assert starts(("reach",), type="failure_rate").note(results([(0, True, 1.0)])) == {}
    assert starts(("reach",), type="failure_rate").weights is None


def test_weights_follow_outcomes_and_are_part_of_a_resumed_run():
    one = starts(type="failure_rate", floor=0.0, memory=0.5)
    assert one.weights == [1, 1, 1]
    first = one.note(results([(0, True, 0.0)], [(0, True, 0.0), (1, False, 0.0)]))
    assert first["env/task_share/reach"] == pytest.approx(0.5 / 2.5)
    assert one.weights == [0.5, 1, 1]
    two = starts(type="failure_rate", floor=0.0, memory=0.5)
    two.load_state(json.loads(json.dumps(one.state())))
    assert two.weights == one.weights
    assert one.note(results([(0, True, 0.0)])) == two.note(results([(0, True, 0.0)]))
    assert two.weights == one.weights == [0.25, 1, 1]
    other = starts(("reach", "pull"), type="failure_rate")
    other.load_state(one.state())
    assert other.weights == [1, 1], "what was learned of other tasks does not count"


def test_tasks_are_played_alike_if_none_has_a_weight():
    one = starts(("press", "pull"), type="learnability", floor=0.0, memory=0.0)
    shares = one.note(results([(0, True, 0.0), (1, False, 0.0)]))
    assert shares["env/task_share/press"] == shares["env/task_share/pull"] == 0.5
    assert one.weights == [1, 1]
