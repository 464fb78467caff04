"""Which task each group of envs plays: shares, spreads over processes, groups, saved states."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from rlinf.envs.options import VectorEnvOptions
from rlinf.envs.reset_plan import ResetPlan
from rlinf.envs.task_draw import TaskDraw, make_task_draw
from rlinf.envs.tasks import TaskTable

NAMES = ["reach", "push", "pull"]
STATES = [range(0, 10), range(10, 30), range(30, 35)]


def table(listed: bool = True, names=NAMES) -> TaskTable:
    return TaskTable(names, STATES.__getitem__ if listed else None)


def drawn(draw: TaskDraw, groups: int, count: int) -> list[int]:
    return [table().task_of(draw.start(group, count).reset_id) for group in range(groups)]


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 0), (0.2, 0.5, 1.7), (0, 0, 2)])
@pytest.mark.parametrize("groups", [1, 2, 7, 30])
def test_each_round_has_the_share_of_each_task_to_one_episode(weights, groups):
    draw = TaskDraw(table(), weights, 3, groups)
    shares, total = np.array(weights) / sum(weights), Counter()
    for count in range(80):
        tasks = Counter(drawn(draw, groups, count))
        for task, share in enumerate(shares):
            assert abs(tasks[task] - share * groups) < 1
        total += tasks
    for task, share in enumerate(shares):
        assert total[task] / (80 * groups) == pytest.approx(share, abs=0.05)
        assert share > 0 or total[task] == 0


def test_a_group_keeps_its_task_while_shares_are_whole_and_starts_differ():
    draw = TaskDraw(table(), [1, 1, 1], 5, 6)
    rounds = [[draw.start(group, count) for group in range(6)] for count in range(40)]
    tasks = [[table().task_of(start.reset_id) for start in starts] for starts in rounds]
    assert all(own == tasks[0] for own in tasks)
    assert sorted(tasks[0]) == [0, 0, 1, 1, 2, 2] and tasks[0] != sorted(tasks[0])
    seen = {start.reset_id for starts in rounds for start in starts}
    assert seen == set(range(35)), "all starts of all tasks are used"
    assert all(start.seed % 2 == 0 for starts in rounds for start in starts)
    # A reset state always has the same seed, and another seed of the run another order.
    assert len({start for starts in rounds for start in starts}) == 35
    other = TaskDraw(table(), [1, 1, 1], 6, 6)
    assert [other.start(group, 0) for group in range(6)] != rounds[0]


def test_without_a_list_of_states_the_reset_id_is_the_task():
    draw = TaskDraw(table(listed=False), [1, 1, 2], 5, 4)
    starts = [draw.start(group, count) for group in range(4) for count in range(50)]
    assert Counter(start.reset_id for start in starts) == {0: 50, 1: 50, 2: 100}
    assert len({start.seed for start in starts}) == 200


@pytest.mark.parametrize(("weights", "said"), [([1, 1], "3 numbers"), ([0, 0, 0], "above 0")])
def test_weights_that_do_not_fit(weights, said):
    with pytest.raises(ValueError, match=said):
        TaskDraw(table(), weights, 0, 4)
    with pytest.raises(ValueError, match="3 numbers from 0"):
        TaskDraw(table(), [1, -1, 1], 0, 4)


def test_a_task_without_states_is_not_drawn():
    tasks = TaskTable(NAMES, [range(0), range(5), range(5, 6)].__getitem__)
    draw = TaskDraw(tasks, [5, 1, 1], 0, 4)
    found = Counter(tasks.task_of(draw.start(g, n).reset_id) for g in range(4) for n in range(30))
    assert found == {1: 60, 2: 60}
    with pytest.raises(ValueError, match="no task can be drawn"):
        draw.set_weights([1, 0, 0])


def plan(group_size=1, offset=0, processes=1, num_envs=8, **cfg):
    options = VectorEnvOptions.from_cfg({"seed": 4, "group_size": group_size, **cfg}, "walk")
    made = ResetPlan(options, num_envs, offset, processes, 35)
    draw = make_task_draw(cfg, options, table(), made.num_groups)
    made.draw_tasks(draw)
    return made, draw


@pytest.mark.parametrize("group_size", [1, 2])
def test_processes_do_not_change_what_slots_get(group_size):
    def starts(processes):
        share = 8 // processes
        plans = [plan(group_size, rank, processes, share)[0] for rank in range(processes)]
        return [[own.next(slot) for _ in range(5)] for own in plans for slot in range(share)]

    assert starts(1) == starts(2) == starts(4)


def test_members_of_a_group_begin_alike_whenever_weights_change():
    made, draw = plan(group_size=4)
    first = [[made.next(slot) for slot in (0, 4)] for _ in range(10)]
    draw.set_weights([0, 0, 1])
    rest = [[[made.next(slot) for _ in range(10)] for slot in range(k + 1, k + 4)] for k in (0, 4)]
    for group, members in enumerate(rest):
        for member in members:
            assert member == [starts[group] for starts in first]
    # From here on the new weights hold, and what is past is forgotten.
    assert {table().task_of(made.next(slot).reset_id) for slot in range(8)} == {2}
    assert len(draw.get_state()["drawn"]) == 0


def test_fixed_starts_stay_until_they_are_drawn_again_whatever_weights_do():
    made, draw = plan(group_size=2, use_fixed_reset_state_ids=True)
    made.redraw()
    first = [made.next(slot) for slot in range(8)]
    draw.set_weights([0, 1, 0])
    assert [made.next(slot) for slot in range(8)] == first
    made.redraw()
    assert {table().task_of(made.next(slot).reset_id) for slot in range(8)} == {1}


def test_a_saved_plan_goes_on_exactly():
    one, draw = plan(group_size=2)
    draw.set_weights([1, 5, 2])
    for slot in (0, 0, 2, 3, 4):
        one.next(slot)
    state = one.get_state()
    # As checkpoints have it: arrays and plain data.
    text = json.dumps(state, default=lambda array: array.tolist())
    two, other = plan(group_size=2)
    two.set_state(json.loads(text))
    draw.set_weights([1, 1, 1]), other.set_weights([1, 1, 1])
    following = [[made.next(slot) for slot in range(8) for _ in range(3)] for made in (one, two)]
    assert following[0] == following[1]


def test_envs_tell_the_tasks_of_episodes_that_ended(several, push):
    env = several(4, seed=1, max_episode_steps=2, start_sampler={"type": "weighted"})
    _, infos = env.reset()
    begun = infos["reset_state_ids"]
    *_, infos = env.chunk_step(push(4, 2))
    assert torch.equal(infos[-1]["episode_tasks"], begun % 3)
    env.set_task_weights([0, 1, 0])
    env.chunk_step(push(4, 2))
    *_, infos = env.chunk_step(push(4, 2))
    assert infos[-1]["episode_tasks"].tolist() == [1] * 4
    assert (infos[-1]["episode_reset_ids"] % 3 == 1).all()


def test_a_resumed_env_plays_the_tasks_of_the_uninterrupted_one(several, push, as_saved):
    cfg = {"seed": 1, "max_episode_steps": 3, "group_size": 2}
    one, two = several(8, **cfg), several(8, **cfg)
    one.reset()
    one.set_task_weights([1, 4, 2])
    for _ in range(5):
        one.chunk_step(push(8, 2))
    two.set_state(one.get_state())
    for _ in range(9):
        assert as_saved(one) == as_saved(two)
        one.chunk_step(push(8, 2)), two.chunk_step(push(8, 2))
