"""Experts: their registry, those that come along, and a person at a device."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.config import env_plugins
from rlinf.envs import (
    ActionSpec,
    Device,
    DeviceExpert,
    DeviceReading,
    Expert,
    device_expert,
    experts,
    make_expert,
    register_expert,
)
from rlinf.envs.metaworld.env import MetaWorldEnv

BOX = ActionSpec.box([-1, -1], [1, 2])
CHOICE = ActionSpec.choice([4], start=2)


class Still(Expert):
    def act(self, obs, slots):
        return np.zeros((len(slots), self.action_spec.dim))


@pytest.fixture(autouse=True)
def fresh_experts(monkeypatch):
    monkeypatch.setattr(experts._experts, "_targets", dict(experts._experts._targets))
    monkeypatch.setitem(env_plugins._names, "expert", set(env_plugins._names["expert"]))


def test_an_env_type_goes_before_all_of_them():
    register_expert("still", Still)
    own = type("Own", (Still,), {})
    register_expert("STILL", own, env_type="Maze")
    assert type(make_expert("Still", {"env_type": "maze"}, BOX)) is own
    assert type(make_expert("still", {"env_type": "walk"}, BOX)) is Still


def test_a_decorator_and_a_path_register(monkeypatch):
    decorated = register_expert("quiet")(Still)
    assert decorated is Still
    register_expert("far", "rlinf.envs.experts:RandomExpert")
    assert type(make_expert("far", {"env_type": "walk"}, BOX)) is experts.RandomExpert


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(ValueError, match="for env type walk .*; known: random"):
        make_expert("scripted", {"env_type": "walk"}, BOX)
    with pytest.raises(ValueError, match="did you mean 'scripted'"):
        make_expert("scriptd", {"env_type": "metaworld"}, BOX)


def test_a_name_is_not_taken_twice():
    register_expert("still", Still)
    register_expert("still", Still)
    other = type("Other", (Still,), {})
    with pytest.raises(ValueError, match="already .*Still.*replaces=True"):
        register_expert("still", other)
    register_expert("still", other, replaces=True)
    assert type(make_expert("still", {"env_type": "walk"}, BOX)) is other


def test_an_expert_that_cannot_be_called_is_refused():
    class Wrong(Expert):
        def act(self, obs):
            return obs

    with pytest.raises(ValueError, match="expert 'wrong': act"):
        register_expert("wrong", Wrong)


@pytest.mark.parametrize("spec", [BOX, CHOICE])
def test_random_actions_depend_on_the_episode_alone(spec):
    def drawn(slots, numbers):
        expert = make_expert("random", {"env_type": "walk"}, spec, num_envs=4, seed=3)
        expert.begin(slots, numbers)
        return np.stack([expert.act({}, slots) for _ in range(5)], axis=1)

    first, second = drawn([0, 1], [8, 9]), drawn([3, 2], [9, 8])
    np.testing.assert_array_equal(first, second[::-1])
    assert (first[0] != first[1]).any()
    assert (first >= spec.low).all() and (first <= spec.high).all()


def play(env, expert, obs, steps):
    solved = np.zeros(env.num_envs, bool)
    slots = list(range(env.num_envs))
    for _ in range(steps):
        actions = np.clip(expert.act(env.expert_obs(obs), slots), -1, 1)
        obs, _, _, _, infos = env.step(actions)
        solved |= infos["success"].numpy()
    return solved


def test_the_policies_of_metaworld_solve_their_tasks():
    cfg = {"env_type": "metaworld", "task": "MT10", "max_episode_steps": 150, "seed": 1}
    env = MetaWorldEnv(cfg, 6)
    obs, _ = env.begin_episodes(range(6), evaluation=False)
    assert len(set(obs["task_descriptions"])) == 6
    expert = make_expert("scripted", cfg, env.action_spec, num_envs=6)
    assert play(env, expert, obs, 149).sum() >= 5
    env.close()


def test_the_policies_of_metaworld_see_what_is_hidden_from_the_policy():
    hidden = {"state_entries": [0, 1, 2, 3], "hide_goal": True, "swap_instructions": True}
    cfg = {"env_type": "metaworld", "tasks": ["reach-v3", "drawer-close-v3"], "seed": 1}
    cfg |= {"max_episode_steps": 150, "task_one_hot": False} | hidden
    env = MetaWorldEnv(cfg, 4)
    obs, _ = env.begin_episodes(range(4), evaluation=False)
    assert obs["states"].shape == (4, 4)
    expert = make_expert("scripted", cfg, env.action_spec, num_envs=4)
    assert play(env, expert, obs, 149).all()
    env.close()


class FakeDevice(Device):
    """Stands for a person: gives readings one after the other."""

    def __init__(self, readings=()):
        self.readings, self.begun, self.closed = list(readings), [], False

    def read(self):
        return self.readings.pop(0)

    def begin(self, episode):
        self.begun.append(episode)

    def close(self):
        self.closed = True


def test_a_person_at_a_device_acts():
    device = FakeDevice(
        [DeviceReading(np.array([0.5, 2.0])), DeviceReading(), DeviceReading(discard=True)]
    )
    expert = DeviceExpert(device, {}, BOX)
    expert.begin([0], [4])
    assert expert.act({}, [0]).tolist() == [[0.5, 2.0]]
    assert expert.act({}, [0]).tolist() == [[0.0, 0.0]]
    assert not expert.discards(0)
    expert.act({}, [0])
    assert expert.discards(0)
    expert.begin([0], [5])
    assert not expert.discards(0) and device.begun == [4, 5]
    expert.close()
    assert device.closed


def test_hands_off_is_the_choice_next_to_zero():
    assert DeviceExpert(FakeDevice([DeviceReading()]), {}, CHOICE).act({}, [0]).tolist() == [[2]]


def test_a_device_moves_one_env_with_actions_that_fit():
    with pytest.raises(ValueError, match="there are 3; set collect.num_envs to 1"):
        DeviceExpert(FakeDevice(), {}, BOX, num_envs=3)
    with pytest.raises(ValueError, match="FakeDevice gave an action of 3 numbers; the env takes 2"):
        DeviceExpert(FakeDevice([DeviceReading(np.zeros(3))]), {}, BOX).act({}, [0])


def test_a_device_is_registered_like_any_expert():
    register_expert("joystick", device_expert(FakeDevice))
    assert experts.is_realtime("joystick", "walk") and not experts.is_realtime("random", "walk")
    assert isinstance(make_expert("joystick", {"env_type": "walk"}, BOX), DeviceExpert)
