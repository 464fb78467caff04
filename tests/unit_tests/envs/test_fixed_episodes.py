"""Episodes of an evaluation: numbered, fixed, each played once, however slots are spread."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf.envs import EnvError
from rlinf.envs.fixed_episodes import EpisodePlan
from rlinf.envs.options import VectorEnvOptions
from rlinf.envs.reset_plan import ResetPlan
from rlinf.envs.tasks import TaskTable


def play(env, numbers, chunk=1):
    """Plays episodes with actions that depend on the observation; returns what came of each."""
    found = {}
    obs, infos = env.begin_episodes(numbers)
    assert bool(infos["_valid"].any()) == env.has_work
    while env.has_work:
        push = 0.2 + (obs["states"][:, :1] % 7) / 10
        actions = push[:, None].expand(-1, chunk, 2)
        obs_list, *_, all_infos = env.chunk_step(actions)
        obs, infos = obs_list[-1], all_infos[-1]
        for slot in infos.get("_episode", torch.zeros(0)).nonzero().flatten().tolist():
            episode = infos["fixed_episodes"][slot]
            metrics = {key: float(value[slot]) for key, value in infos["episode"].items()}
            assert episode.number not in found
            found[episode.number] = (episode, metrics)
    return found


def plan(tasks=("walk",), states=None, **cfg):
    options = VectorEnvOptions.from_cfg(cfg, "walk")
    states_of = None if states is None else lambda task: states[task]
    return EpisodePlan(options, TaskTable(tasks, states_of))


@pytest.mark.parametrize("states", [None, 5, 40])
def test_every_episode_is_played_once_and_alike_for_any_spread(walk, states):
    cfg = {"seed": 5, "max_episode_steps": 12, "states": states, "terminates": True}
    cfg["auto_reset"] = False
    tables = []
    for processes, slots in ((1, 4), (2, 3), (3, 1), (1, 11), (4, 2)):
        found = {}
        for rank in range(processes):
            env = walk(slots, rank, processes, **cfg)
            found |= play(env, range(rank, 11, processes))
        assert sorted(found) == list(range(11))
        tables.append(found)
    assert all(table == tables[0] for table in tables)
    # They end at different times, so slots take the next one at different times.
    assert len({metrics["episode_len"] for _, metrics in tables[0].values()}) > 2
    starts = {episode.start for episode, _ in tables[0].values()}
    assert len(starts) == min(11, states or 11)


def test_evaluations_repeat_and_do_not_change_what_reset_draws(walk, push):
    cfg = {"seed": 3, "max_episode_steps": 4}
    used, fresh = walk(2, **cfg), walk(2, **cfg)
    first = play(used, range(5))
    assert play(used, range(5)) == first
    assert play(used, [3]) == {3: first[3]}
    assert not used.has_work
    assert torch.equal(used.reset()[0]["states"], fresh.reset()[0]["states"])
    assert not used.evaluates
    for _ in range(3):
        one, two = used.chunk_step(push(chunk=4)), fresh.chunk_step(push(chunk=4))
        assert torch.equal(one[0][-1]["states"], two[0][-1]["states"])
        assert "fixed_episodes" not in one[-1][-1]


def test_episodes_depend_on_the_seed_and_nothing_else():
    same, other = plan(seed=1), plan(seed=2)
    assert [same.episode(n) for n in range(6)] == [plan(seed=1).episode(n) for n in range(6)]
    assert same.episode(0).start != other.episode(0).start
    assert len({same.episode(n).start for n in range(100)}) == 100
    assert same.episode(7).start.reset_id == -1
    # Of a list of states, another seed takes others first, and all are used before one comes again.
    states = [list(range(50))]
    orders = [[plan(states=states, seed=s).episode(n) for n in range(60)] for s in (1, 2)]
    ids = [[episode.start.reset_id for episode in order] for order in orders]
    assert ids[0] != ids[1] and sorted(ids[0][:50]) == states[0] and ids[0][50:] == ids[0][:10]
    # The seed of an episode is that of its state: what begins alike goes alike.
    assert orders[0][50].start == orders[0][0].start


@pytest.mark.parametrize("states", [None, 30])
def test_no_evaluation_begins_as_training_does(states):
    """Whatever the seeds, and also if both have the same one and the same list of states."""
    train, evaluation = set(), set()
    for seed in range(4):
        options = VectorEnvOptions.from_cfg({"seed": seed}, "walk")
        plans = ResetPlan(options, 8, 0, 1, states)
        train |= {plans.next(slot).seed for slot in range(8) for _ in range(40)}
        episodes = plan(states=None if states is None else [range(states)], seed=seed)
        evaluation |= {episodes.episode(number).start.seed for number in range(40)}
    # Not only by luck: the sets of seeds that they draw from have nothing in common.
    assert {seed % 2 for seed in train} == {0} and {seed % 2 for seed in evaluation} == {1}
    assert len(evaluation) == 4 * (states or 40)


@pytest.mark.parametrize("listed", [True, False])
def test_tasks_have_equally_many_episodes(listed):
    names = [f"task{index}" for index in range(10)]
    states = [range(50 * index, 50 * index + 50) for index in range(10)] if listed else None
    episodes = [plan(names, states, seed=4).episode(n) for n in range(25)]
    counts = Counter(episode.task for episode in episodes)
    assert list(counts.values()) == [3] * 5 + [2] * 5
    assert [episode.task for episode in episodes[:10]] == names
    for episode in episodes:
        task = names.index(episode.task)
        assert episode.start.reset_id // 50 == task if listed else episode.start.reset_id == task
    assert len({episode.start for episode in episodes}) == 25


def test_a_task_without_reset_states_is_left_out():
    found = plan(("a", "b", "c"), [range(0, 4, 2), range(1, 4, 2), range(0)])
    assert [found.episode(n).task for n in range(5)] == ["a", "b", "a", "b", "a"]


@pytest.mark.parametrize("listed", [True, False])
def test_training_begins_with_as_many_episodes_of_a_task_as_it_weighs(listed):
    names = ("a", "b", "c")
    states = [range(0, 9, 3), range(1, 9, 3), range(2, 9, 3)] if listed else None
    states_of = None if states is None else lambda task: states[task]
    options = VectorEnvOptions.from_cfg({"seed": 4}, "walk")
    table = TaskTable(names, states_of)
    episodes = EpisodePlan(options, table, False, [1, 5, 0])
    # Whatever is asked for first.
    assert episodes.episode(11).task == "b"
    found = [episodes.episode(number) for number in range(12)]
    assert "".join(episode.task for episode in found) == "bbabbbbbabbb"
    for episode in found:
        assert table.task_of(episode.start.reset_id) == names.index(episode.task)
    if listed:
        own = [episode.start.reset_id for episode in found if episode.task == "b"]
        assert sorted(own[:3]) == [1, 4, 7] and own[3:6] == own[:3], "each state before one again"
    with pytest.raises(ValueError, match="no task can be drawn: the weights of a, b, c are"):
        EpisodePlan(options, table, False, [0, 0, 0])


def test_groups_and_chosen_states():
    grouped = plan(seed=1, group_size=3)
    starts = [grouped.episode(n).start for n in range(6)]
    assert len(set(starts)) == 2 and starts[0] == starts[2] and starts[3] == starts[5]
    names, states = ("a", "b"), [range(4), range(4, 8)]
    ordered = plan(names, states, use_ordered_reset_state_ids=True)
    found = [ordered.episode(n) for n in range(8)]
    assert [episode.start.reset_id for episode in found] == list(range(8))
    assert [episode.task for episode in found] == ["a"] * 4 + ["b"] * 4
    with pytest.raises(ValueError, match="no episode 8: .* 8 reset states once .* at most 8"):
        ordered.episode(8)
    chosen = plan(names, states, specific_reset_id=6)
    assert {chosen.episode(n)[1:] for n in range(3)} == {("b", chosen.episode(0).start)}


def test_a_failed_simulator_plays_its_episode_again(walk):
    cfg = {"seed": 4, "max_episode_steps": 5}
    failing = walk(2, fail_at=(1, 3), max_restarts=2, **cfg)
    assert play(failing, range(5), chunk=2) == play(walk(2, **cfg), range(5), chunk=2)
    assert failing.made == [0, 1, 1]


def test_an_episode_with_a_nan_does_not_count_and_the_others_do(walk):
    cfg = {"seed": 4, "max_episode_steps": 5}
    broken = walk(2, nan_at=(1, 3), on_nan="skip", **cfg)
    found, whole = play(broken, range(5)), play(walk(2, **cfg), range(5))
    assert 0 < len(found) < 5
    assert all(found[number] == whole[number] for number in found)


def test_a_simulator_that_draws_its_own_starts_is_refused(walk, monkeypatch):
    env = walk(2)
    monkeypatch.setattr(type(env), "chooses_starts", False)
    with pytest.raises(EnvError, match="walk draws its initial states itself"):
        env.begin_episodes(range(2))


def test_mt10_is_evaluated_in_all_its_tasks():
    pytest.importorskip("metaworld")
    from rlinf.envs import get_env_cls

    env = get_env_cls("metaworld")({"task": "MT10", "max_episode_steps": 2, "seed": 1}, 5)
    obs, _ = env.begin_episodes(range(5, 15))
    seen = []
    while env.has_work:
        *_, infos = env.chunk_step(np.zeros((5, 2, 4), np.float32))
        seen += infos[-1]["fixed_episodes"]
    assert [episode.task for episode in seen] == [*env.tasks[5:], *env.tasks[:5]]
    assert all(episode.start.reset_id // 50 == env.tasks.index(episode.task) for episode in seen)
    env.close()


@pytest.mark.parametrize("goals", ["trials", "random"])
def test_metaworld_says_which_states_belong_to_which_task(goals):
    pytest.importorskip("metaworld")
    from rlinf.envs.metaworld.env import MetaWorldEnv

    fake = SimpleNamespace(
        _random_goals=goals == "random", num_reset_states=25, tasks=["a", "b", "c"]
    )
    states = [list(MetaWorldEnv.task_states(fake, task)) for task in range(3)]
    expected = [[*range(t, 25, 3)] for t in range(3)]
    if goals == "trials":
        expected = [[*range(50 * t, 50 * t + 50)] for t in range(3)]
    assert states == expected


def test_numbered_episodes_of_training_begin_otherwise_than_those_of_evaluations(walk) -> None:
    env = walk(num_envs=4, max_episode_steps=3)
    of_training, _ = env.begin_episodes(range(4), evaluation=False)
    assert env.numbered and not env.evaluates
    seeds = [episode.start.seed for episode in env.playing]
    assert all(seed % 2 == 0 for seed in seeds) and len(set(seeds)) == 4
    of_evaluation, _ = env.begin_episodes(range(4))
    assert env.numbered and env.evaluates
    assert not torch.equal(of_training["states"], of_evaluation["states"])
    env.reset()
    assert not env.numbered and not env.evaluates
