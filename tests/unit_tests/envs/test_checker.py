"""The checker passes good envs and finds what is wrong with broken ones."""

import gymnasium
import numpy as np
import pytest
import torch

from rlinf.envs import StateNotSupported, get_env_cls
from rlinf.envs.checker import check_env
from rlinf.envs.gymnasium.env import env_cls_for


class Good(gymnasium.Env):
    """A point that is pushed around; every broken env below breaks one thing of it."""

    noise = 0.1

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.memory = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2)
        self.steps = 0
        return self.place.copy(), {}

    def step(self, action):
        self.steps += 1
        self.place = self.place + 0.1 * action + self.noise * self.np_random.normal(size=2)
        done = bool(np.linalg.norm(self.place) > 3)
        return self.place.copy(), float(-np.linalg.norm(self.place)), done, False, {}


class IgnoresTheSeed(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None, options=options)


class NoiseOfItsOwn(Good):
    def step(self, action):
        obs, *rest = super().step(action)
        return obs + np.random.normal(size=2), *rest


class RemembersThePast(Good):
    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.place = obs + self.memory
        return self.place.copy(), info

    def step(self, action):
        self.memory = self.memory + 1
        return super().step(action)


class NotANumber(Good):
    def step(self, action):
        obs, *rest = super().step(action)
        return obs * (np.nan if self.steps == 30 else 1), *rest


class InfiniteReward(Good):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.inf if self.steps == 4 else reward, *rest


class GrowsInSize(Good):
    def step(self, action):
        obs, *rest = super().step(action)
        return np.append(obs, 0.0), *rest


class LiesAboutItsSpace(Good):
    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(5, 6, (2,), np.float64)


class Crashes(Good):
    def step(self, action):
        if self.steps == 2:
            raise OSError("no such motor")
        return super().step(action)


class CannotBeMade(Good):
    def __init__(self):
        raise OSError("no licence")


class NoActions(Good):
    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Text(3)


BROKEN = {
    IgnoresTheSeed: ("same seed", "after reset with the same seed"),
    NoiseOfItsOwn: ("same seed", "in step 1 with the same seed and actions"),
    RemembersThePast: ("past", "in the second episode, by what was before"),
    NotANumber: ("random agent", "step 30 of its episode"),
    InfiniteReward: ("random agent", "reward is inf"),
    GrowsInSize: ("steps", "the observation has 3 entries, its space 2"),
    LiesAboutItsSpace: ("spaces", "the observation of reset is not in Box(5.0, 6.0"),
    Crashes: ("steps", "OSError: no such motor"),
    CannotBeMade: ("make", "OSError: no licence"),
    NoActions: ("make", "Text are not supported"),
}


def failures(env_cls, cfg=None, **kwargs):
    findings = list(check_env(env_cls, cfg or {}, **{"steps": 40, **kwargs}))
    return findings, {one.name: one.found for one in findings if one.status == "fail"}


def test_a_good_env_passes():
    findings, failed = failures(env_cls_for("good", Good), num_envs=3)
    assert not failed
    assert all(finding.status == "ok" for finding in findings[:-1])
    assert findings[-1].status == "warn"
    assert "there is no step limit" in findings[-1].found
    assert "steps/s" in findings[-1].found


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_broken_gymnasium_envs_are_found(cls):
    name, words = BROKEN[cls]
    findings, failed = failures(env_cls_for(cls.__name__, cls))
    assert name in failed
    assert words in failed[name]
    if name == "make":
        assert len(findings) == 1


def good_vector(walk):
    return type(walk(1))


def overwritten(self, actions):
    result = type(self).__mro__[1].chunk_step(self, actions)
    if not hasattr(self, "_shared"):
        self._shared = result[0][-1]["states"]
    self._shared[:] = result[0][-1]["states"]
    for obs in result[0]:
        obs["states"] = self._shared
    return result


def without_final_observation(self, actions):
    result = type(self).__mro__[1].chunk_step(self, actions)
    result[-1][-1].pop("final_observation", None)
    return result


def double_precision(self, actions):
    obs, rewards, *rest = type(self).__mro__[1].chunk_step(self, actions)
    return obs, rewards.double(), *rest


def numbers_as_flags(self, actions):
    obs, rewards, terminations, *rest = type(self).__mro__[1].chunk_step(self, actions)
    return obs, rewards, terminations.float(), *rest


def last_reward_only(self, actions):
    obs, rewards, *rest = type(self).__mro__[1].chunk_step(self, actions)
    rewards[:, :-1] = 0
    return obs, rewards, *rest


def wrong_return(self, actions):
    result = type(self).__mro__[1].chunk_step(self, actions)
    if "episode" in result[-1][-1]:
        result[-1][-1]["episode"]["return"] += 1
    return result


def old_observation(self, actions):
    result = type(self).__mro__[1].chunk_step(self, actions)
    if "final_observation" in result[-1][-1]:
        result[0][-1] = result[-1][-1]["final_observation"]
    return result


BROKEN_STEPS = {
    overwritten: ("kept observations", "it was overwritten"),
    without_final_observation: ("episode ends", "infos lack 'final_observation'"),
    double_precision: ("steps", "rewards is torch.float64"),
    numbers_as_flags: ("steps", "terminations is torch.float32"),
    last_reward_only: ("chunks", "rewards of a chunk and of its steps differ in step 0"),
    wrong_return: ("metrics", "'return' is not the sum"),
    old_observation: ("episode ends", "between auto-reset and reset"),
}


@pytest.mark.parametrize("chunk_step", BROKEN_STEPS, ids=lambda function: function.__name__)
def test_broken_vector_envs_are_found(walk, chunk_step):
    name, words = BROKEN_STEPS[chunk_step]
    cls = type("Broken", (good_vector(walk),), {"chunk_step": chunk_step})
    _, failed = failures(cls)
    assert name in failed
    assert words in failed[name]


def test_a_limit_that_is_off_by_one_is_found(walk):
    class Late(good_vector(walk)):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._limit += 1

    _, failed = failures(Late)
    assert "went on after max_episode_steps = 6 steps" in failed["episode ends"]


def test_a_reset_on_the_wrong_device_or_shape_is_found(walk):
    class Odd(good_vector(walk)):
        def reset(self):
            obs, infos = super().reset()
            return {**obs, "states": obs["states"].numpy()}, infos

    assert "not a CPU tensor" in failures(Odd)[1]["observations"]

    class Worded(good_vector(walk)):
        def _pack(self, images=True):
            return {**super()._pack(images), "task_descriptions": "walk"}

    assert "not a list of 4 texts" in failures(Worded)[1]["observations"]


def test_an_env_that_cannot_be_saved_gets_a_warning(walk):
    class Unsaved(good_vector(walk)):
        def _get_sim_state(self):
            raise StateNotSupported("there is no way to save it")

    findings, failed = failures(Unsaved)
    assert not failed
    saved = next(one for one in findings if one.name == "saved state")
    assert saved.status == "warn"
    assert saved.found == (
        "there is no way to save it: a resumed run begins new episodes and is not exact"
    )


def test_real_envs_pass():
    pytest.importorskip("metaworld")
    _, failed = failures(get_env_cls("metaworld"), {"task": "MT10"}, num_envs=2)
    assert not failed
    _, failed = failures(get_env_cls("gymnasium"), {"id": "Hopper-v5"})
    assert not failed
    assert torch.get_num_threads() == 1
