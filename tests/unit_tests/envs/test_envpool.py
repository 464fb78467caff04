"""The EnvPool adapter against a small fake, and against MetaWorld where EnvPool is installed."""

import sys
import types

import gymnasium
import numpy as np
import pytest
import torch

from rlinf.envs import EnvError, MissingSimulator, get_env_cls

TASK = "MetaWorld/ButtonPress-v3"


class FakePool:
    """Like EnvPool's: partial steps and resets by `env_id`, seeds fixed when made."""

    def __init__(self, num_envs, seed, max_episode_steps=500, terminates=False, **kwargs):
        self.config = {"max_episode_steps": max_episode_steps}
        self.kwargs, self.seeds, self.terminates = kwargs, seed, terminates
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,))
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self._rngs = [np.random.default_rng(one) for one in seed]
        self._rows = np.zeros((num_envs, 3))
        self.closed = False

    def reset(self, env_id):
        for index in env_id:
            self._rows[index] = [self._rngs[index].random(), 0, 0]
        return self._rows[env_id].copy(), {"env_id": env_id}

    def step(self, actions, env_id):
        assert actions.dtype == np.float32 and len(actions) == len(env_id)
        self._rows[env_id, 1] += actions[:, 0]
        self._rows[env_id, 2] += 1
        rows = self._rows[env_id].copy()
        success = (rows[:, 1] > 1).astype(float)
        info = {"env_id": env_id, "success": success}
        truncated = rows[:, 2] >= self.config["max_episode_steps"]
        ended = (success > 0) & self.terminates
        return rows, rows[:, 1].astype(np.float32), ended, truncated & ~ended, info

    def close(self):
        self.closed = True


@pytest.fixture
def make(monkeypatch):
    """Makes the adapter with the fake in EnvPool's place."""
    module = types.ModuleType("envpool")
    module.list_all_envs = lambda: [TASK, "HalfCheetah-v4"]
    module.make_gymnasium = lambda task, **kwargs: FakePool(**kwargs)
    monkeypatch.setitem(sys.modules, "envpool", module)

    def make_env(num_envs=4, **cfg):
        return get_env_cls("envpool")({"id": "button-press-v3", **cfg}, num_envs)

    return make_env


def test_steps_limits_and_the_next_episode(make):
    env = make(max_episode_steps=3, num_threads=2)
    assert env._pool.kwargs == {"partially_observable": False, "num_threads": 2}
    first, _ = env.reset()
    assert first["task_descriptions"] == ["press the button on the side of the box"] * 4
    actions = np.full((4, 4, 2), 0.25, np.float32)
    obs, rewards, _, truncations, infos = env.chunk_step(actions)
    assert rewards[0].tolist() == [0.25, 0.5, 0.75, 0]
    assert truncations.tolist() == [[False, False, True, False]] * 4
    assert infos[-1]["final_observation"]["states"][:, 2].tolist() == [3] * 4
    assert obs[-1]["states"][:, 2].tolist() == [0] * 4
    assert not torch.equal(obs[-1]["states"][:, 0], first["states"][:, 0])
    env.close()
    assert env._pool.closed


def test_slots_that_ended_rest_while_others_go_on(make):
    env = make(2, init_params={"terminates": True})
    env.reset()
    actions = np.zeros((2, 4, 2), np.float32)
    actions[1] = 0.6
    obs, rewards, terminations, _, infos = env.chunk_step(actions)
    assert terminations.tolist() == [[False] * 4, [False, True, False, False]]
    assert infos[-1]["episode"]["episode_len"].tolist() == [4, 2]
    assert infos[-1]["episode"]["success_once"].tolist() == [0, 1]


def test_groups_have_the_same_seed_and_seeds_do_not_depend_on_the_processes(make):
    env = make(group_size=2, seed=1)
    states = env.reset()[0]["states"]
    assert torch.equal(states[0::2], states[1::2])
    halves = [
        get_env_cls("envpool")({"id": TASK, "seed": 1, "group_size": 2}, 2, offset, 2)
        for offset in range(2)
    ]
    assert env._pool.seeds == [seed for half in halves for seed in half._pool.seeds]


def test_a_state_that_cannot_be_saved_gives_new_episodes_of_other_starts(make, as_saved):
    env = make(max_episode_steps=2, seed=1)
    seen = [env.reset()[0]["states"][:, 0]]
    for _ in range(3):
        seen.append(env.chunk_step(np.zeros((4, 2, 2), np.float32))[0][-1]["states"][:, 0])
    state = env.get_state()
    assert state["not_saved"] == "envpool cannot save the state of its simulator"
    as_saved(env)
    resumed = make(max_episode_steps=2, seed=1)
    assert resumed.set_state(state) == state["not_saved"]
    with pytest.raises(EnvError, match="has to be reset before it is stepped"):
        resumed.chunk_step(np.zeros((4, 1, 2), np.float32))
    begun = resumed.reset()[0]["states"][:, 0]
    assert not np.isin(begun, torch.stack(seen)).any(), "the run does not begin once more"
    assert resumed.get_state()["totals"].keys() == state["totals"].keys()


def test_what_does_not_work_is_refused(make, monkeypatch):
    for key in ("use_fixed_reset_state_ids", "use_ordered_reset_state_ids"):
        with pytest.raises(ValueError, match=f"{key} does not work with EnvPool"):
            make(**{key: True})
    with pytest.raises(ValueError, match="specific_reset_id does not work with EnvPool"):
        make(specific_reset_id=0)
    env = make(2, ignore_terminations=True, init_params={"terminates": True})
    env.reset()
    with pytest.raises(EnvError, match="ignore_terminations does not work"):
        env.chunk_step(np.ones((2, 3, 2), np.float32))
    with pytest.raises(ValueError, match="no task 'HalfChetah-v4'; near ones: HalfCheetah-v4"):
        make(id="HalfChetah-v4")
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingSimulator, match="pip install 'envpool"):
        get_env_cls("envpool")({"id": TASK}, 1)


def test_the_real_one_agrees_with_metaworld():
    pytest.importorskip("envpool")
    pytest.importorskip("metaworld")
    from rlinf.envs.metaworld.simulator import Simulator

    env = get_env_cls("envpool")({"id": "button-press-v3", "num_threads": 1, "seed": 3}, 2)
    states = env.reset()[0]["states"].double().numpy()
    sims = []
    for row in states:
        sim = Simulator("button-press-v3")
        goal = sim.trial_goals(0)[0]
        offset = sim.reset(goal)[4:7] - goal
        assert np.allclose(sim.reset(row[4:7] - offset), row, atol=1e-6)
        sims.append(sim)
    rng = np.random.default_rng(0)
    for step in range(40):
        actions = rng.uniform(-1, 1, (2, 4)).astype(np.float32)
        obs, reward, *_ = env.step(actions)
        for slot, sim in enumerate(sims):
            expected, own, *_ = sim.step(actions[slot])
            assert np.allclose(obs["states"][slot], expected, atol=1e-5), step
            assert float(reward[slot]) == pytest.approx(own, abs=1e-4)
    env.close()
