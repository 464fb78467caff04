"""The LIBERO adapter against a small fake of LIBERO's API."""

import sys
import types
from collections import namedtuple

import numpy as np
import pytest
import torch

from rlinf.envs import MissingSimulator, get_env_cls
from rlinf.envs.libero.env import rotation_vector

Task = namedtuple("Task", "name language problem_folder bddl_file")


class FakeSuite:
    """Two tasks, with three and two stored states."""

    n_tasks = 2

    def get_task(self, index):
        return Task(f"t{index}", ["open it", "close it"][index], "suite", f"t{index}.bddl")

    def get_task_init_states(self, index):
        return np.arange(3 - index)[:, None] + 10.0 * index


class FakeEnv:
    """Moves along one axis; solved when it moved by more than 1."""

    made = []

    def __init__(self, bddl_file_name, camera_heights, camera_widths, **kwargs):
        self.file, self.size, self.kwargs = bddl_file_name, camera_heights, kwargs
        self.closed, self.steps = False, 0
        FakeEnv.made.append(self)

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        self.begin = self.place = None

    def set_init_state(self, state):
        self.begin = self.place = float(state[0])
        return self._obs()

    def step(self, action):
        assert len(action) == 7
        self.steps += 1
        self.place += float(action[0])
        solved = self.place - self.begin > 1
        return self._obs(), float(solved), solved, {}

    def _obs(self):
        picture = np.zeros((self.size, self.size, 3), np.uint8)
        picture[0, 0] = 200
        return {
            "agentview_image": picture,
            "robot0_eye_in_hand_image": picture,
            "robot0_eef_pos": np.array([self.place, 0, 0]),
            "robot0_eef_quat": np.array([0, 0, np.sin(0.25), np.cos(0.25)]),
            "robot0_gripper_qpos": np.array([0.04, -0.04]),
        }

    def close(self):
        self.closed = True


@pytest.fixture
def make(monkeypatch):
    """Makes the adapter with the fake in LIBERO's place."""
    package, inner, envs = (types.ModuleType(name) for name in ("libero", "l.l", "l.l.e"))
    inner.benchmark = types.SimpleNamespace(get_benchmark_dict=lambda: {"libero_goal": FakeSuite})
    inner.get_libero_path = lambda what: f"/data/{what}"
    envs.OffScreenRenderEnv = FakeEnv
    for name, module in (
        ("libero", package),
        ("libero.libero", inner),
        ("libero.libero.envs", envs),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(FakeEnv, "made", [])

    def make_env(num_envs=2, **cfg):
        cfg = {"task_suite_name": "libero_goal", "image_size": 6, **cfg}
        return get_env_cls("libero")(cfg, num_envs)

    return make_env


def test_stored_states_words_and_views(make):
    env = make(5, use_ordered_reset_state_ids=True, init_params={"horizon": 9})
    assert env.num_reset_states == 5
    obs, infos = env.reset()
    assert infos["reset_state_ids"].tolist() == [0, 1, 2, 3, 4]
    assert obs["states"][:, 0].tolist() == [0, 1, 2, 10, 11]
    assert obs["task_descriptions"] == ["open it"] * 3 + ["close it"] * 2
    assert obs["states"].shape == (5, 8)
    assert torch.allclose(obs["states"][0, 3:6], torch.tensor([0, 0, 0.5]))
    assert obs["main_images"][0, -1, -1, 0] == 200
    assert obs["wrist_images"].dtype == torch.uint8
    first = FakeEnv.made[0]
    assert (first.steps, first.kwargs) == (15, {"horizon": 9})
    assert first.file == "/data/bddl_files/suite/t0.bddl"
    assert env.capture_image([0]).shape == (1, 6, 6, 3)


def test_success_terminates_and_a_slot_changes_its_task(make):
    env = make(1, use_ordered_reset_state_ids=True, settle_steps=0)
    env.reset()
    words = []
    while env.has_work:
        obs, rewards, terminations, _, infos = env.chunk_step(np.full((1, 3, 7), 0.6, np.float32))
        assert terminations[0].any()
        assert rewards.tolist() == [[0, 1, 0]]
        assert infos[-1]["episode"]["success_once"].item() == 1
        words += infos[-1]["final_observation"]["task_descriptions"]
    assert words == ["open it"] * 3 + ["close it"] * 2
    assert [one.closed for one in FakeEnv.made] == [True, False]


def test_saved_state(make):
    one, two = make(seed=1), make(seed=1)
    one.reset()
    one.chunk_step(np.full((2, 4, 7), 0.1, np.float32))
    two.set_state(one.get_state())
    a, b = (env.chunk_step(np.full((2, 1, 7), 0.1, np.float32)) for env in (one, two))
    assert torch.equal(a[0][-1]["states"], b[0][-1]["states"])
    assert torch.equal(a[0][-1]["main_images"], b[0][-1]["main_images"])


def test_what_does_not_exist(make, monkeypatch):
    with pytest.raises(ValueError, match="no task suite 'libero_gaol'.*did you mean 'libero_goal'"):
        make(task_suite_name="libero_gaol")
    with pytest.raises(ValueError, match=r"task_ids \[4\] are not in libero_goal, which has 2"):
        make(task_ids=[4])
    assert make(task_ids=[1]).num_reset_states == 2
    monkeypatch.setitem(sys.modules, "libero", None)
    monkeypatch.delitem(sys.modules, "libero.libero")
    with pytest.raises(MissingSimulator, match="pip install rlinf-libero"):
        make()


def test_rotation_vectors():
    assert rotation_vector(np.array([0, 0, 0, 1])).tolist() == [0, 0, 0]
    half = rotation_vector(np.array([1, 0, 0, 0]))
    assert half == pytest.approx([np.pi, 0, 0])


def test_an_evaluation_has_as_many_episodes_of_each_task(make):
    env = make(4, settle_steps=0)
    obs, _ = env.begin_episodes(range(4))
    assert obs["task_descriptions"] == ["open it", "close it"] * 2
    begun = obs["states"][:, 0].tolist()
    assert set(begun[::2]) < {0, 1, 2} and set(begun[1::2]) == {10, 11}
    assert [episode.task for episode in env.playing] == ["t0", "t1"] * 2
