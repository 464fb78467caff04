"""The ManiSkill adapter against a small fake of ManiSkill's API."""

import sys
import types

import gymnasium
import numpy as np
import pytest
import torch

from rlinf.envs import MissingSimulator, get_env_cls


class FakeManiSkill(gymnasium.Env):
    """Batched like ManiSkill: one object, `num_envs` scenes, tensors in and out."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self, num_envs=1, obs_mode="state", sim_backend="auto", render_mode=None, **kwargs
    ):
        self.num_envs, self.obs_mode, self.device = num_envs, obs_mode, torch.device("cpu")
        self.kwargs = {"sim_backend": sim_backend, "render_mode": render_mode, **kwargs}
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.place, self.goal = torch.zeros(num_envs, 2), torch.zeros(num_envs, 2)
        self.resets, self.closed = [], False

    def reset(self, *, seed=None, options=None):
        index = (options or {}).get("env_idx", torch.arange(self.num_envs))
        assert len(seed) == self.num_envs
        self.resets.append(index.tolist())
        # As ManiSkill does: what torch draws for all of them comes from the first seed.
        with torch.random.fork_rng():
            torch.manual_seed(seed[0])
            self.goal[index] = torch.rand(len(index), 2)
        self.place[index] = 0
        return self._obs(), {"reconfigure": False}

    def step(self, action):
        assert action.shape == (self.num_envs, 2)
        self.place = self.place + action
        near = (self.place - self.goal).norm(dim=1) < 0.2
        none = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._obs(), -near.float(), near.clone(), none, {"success": near}

    def _obs(self):
        if self.obs_mode == "state":
            return torch.cat([self.place, self.goal], dim=1)
        camera = {"rgb": torch.full((self.num_envs, 4, 4, 3), 7, dtype=torch.uint8)}
        return {
            "agent": {"qpos": self.place},
            "extra": {"goal": self.goal},
            "sensor_param": {"base": {"intrinsic": torch.zeros(self.num_envs, 3, 3)}},
            "sensor_data": {"base": camera, "hand": camera},
        }

    def render_rgb_array(self):
        return torch.zeros(self.num_envs, 8, 8, 3, dtype=torch.uint8)

    def get_state_dict(self):
        return {"actors": {"place": self.place}, "goal": self.goal}

    def set_state_dict(self, state, env_idx=None):
        self.place, self.goal = state["actors"]["place"].clone(), state["goal"].clone()

    def close(self):
        self.closed = True


@pytest.fixture
def make(monkeypatch):
    """Makes the adapter with the fake in ManiSkill's place."""
    monkeypatch.setitem(sys.modules, "mani_skill", types.ModuleType("mani_skill"))
    monkeypatch.setitem(sys.modules, "mani_skill.envs", types.ModuleType("mani_skill.envs"))
    gymnasium.register("FakePick-v1", FakeManiSkill, max_episode_steps=30)

    def make_env(num_envs=4, **cfg):
        cfg = {"id": "FakePick-v1", **cfg}
        return get_env_cls("maniskill")(cfg, num_envs)

    yield make_env
    del gymnasium.registry["FakePick-v1"]


def test_states_actions_and_limits(make):
    env = make(control_mode="pd_ee_delta_pos", init_params={"robot_uids": "panda"})
    assert env._env.kwargs["control_mode"] == "pd_ee_delta_pos"
    assert env._env.kwargs["robot_uids"] == "panda"
    assert env.max_episode_steps == 30
    assert env.action_spec.dim == 2
    obs, _ = env.reset()
    assert obs["states"].shape == (4, 4)
    assert len(obs["states"][:, 2:].unique(dim=0)) == 4
    obs, *_ = env.chunk_step(np.full((4, 2, 2), 0.01, np.float32))
    assert torch.allclose(obs[-1]["states"][:, :2], torch.full((4, 2), 0.02))
    assert env.capture_image([1, 2]).shape == (2, 8, 8, 3)


def test_success_terminates_one_slot_and_the_others_go_on(make):
    env = make(seed=1)
    obs, _ = env.reset()
    actions = np.zeros((4, 3, 2), np.float32)
    actions[1, 0] = obs["states"][1, 2:]
    obs, rewards, terminations, _, infos = env.chunk_step(actions)
    done = terminations.any(1)
    assert done[1]
    assert infos[-1]["episode"]["success_once"].bool().tolist() == done.tolist()
    assert infos[-1]["episode"]["episode_len"][1] == 1
    assert rewards[1].tolist() == [-1, 0, 0]
    assert env._env.resets[-1] == torch.nonzero(done).flatten().tolist()


def test_groups_and_fixed_ids_begin_alike(make):
    env = make(group_size=2, use_fixed_reset_state_ids=True, max_episode_steps=2, seed=2)
    first = env.reset()[0]["states"]
    assert torch.equal(first[0::2], first[1::2])
    assert not torch.equal(first[0], first[2])
    again = env.chunk_step(np.zeros((4, 2, 2), np.float32))[0][-1]["states"]
    assert torch.equal(first, again)


def test_episodes_of_an_evaluation_begin_alike_in_any_slot(make):
    one, two = make(seed=2), make(2, seed=2)
    first = one.begin_episodes(range(4))[0]["states"]
    second = two.begin_episodes([3, 1])[0]["states"]
    assert torch.equal(first[[3, 1]], second) and len(first.unique(dim=0)) == 4
    assert [episode.task for episode in two.playing] == ["FakePick-v1"] * 2


def test_images(make):
    env = make(2, obs_mode="rgb", image_size=4)
    obs, _ = env.reset()
    assert env._env.kwargs["sensor_configs"] == {"width": 4, "height": 4}
    assert obs["main_images"].shape == (2, 4, 4, 3)
    assert obs["main_images"].dtype == torch.uint8
    assert obs["extra_view_images"].shape == (2, 1, 4, 4, 3)
    assert obs["states"].shape == (2, 4)


def test_saved_state(make):
    one, two = make(seed=3), make(seed=3)
    one.reset()
    one.chunk_step(np.full((4, 3, 2), 0.1, np.float32))
    two.set_state(one.get_state())
    actions = np.full((4, 2, 2), -0.05, np.float32)
    a, b = one.chunk_step(actions), two.chunk_step(actions)
    assert torch.equal(a[0][-1]["states"], b[0][-1]["states"])
    inner = one._env
    one.close(), one.close()
    assert inner.closed


def test_without_maniskill_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mani_skill", None)
    with pytest.raises(MissingSimulator, match="pip install mani-skill"):
        get_env_cls("maniskill")({"id": "PickCube-v1"}, 1)
