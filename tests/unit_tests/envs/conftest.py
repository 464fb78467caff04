"""A small env whose every number can be worked out by hand, and registries that forget."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from rlinf.config import plugins
from rlinf.envs import ActionSpec, SlotVectorEnv, registry
from rlinf.envs.step_result import ObsSpec
from rlinf.utils.checkpoint import save_tree

torch.set_num_threads(1)


class WalkEnv(SlotVectorEnv):
    """Walks along a line: the state is (where it began, where it is, steps made).

    The place of the beginning is drawn from the seed, or is the reset id where there are ids. The
    reward is the first entry of the action. It succeeds while it is beyond 3 of its beginning, and
    terminates there if `terminates`. Keys of the config: states, terminates, fail_at, nan_at.
    """

    env_type = "walk"
    replays = True

    @property
    def obs_spec(self):
        return {"states": ObsSpec((3,))}

    @property
    def action_spec(self):
        return ActionSpec.box([-1, -1], [1, 1])

    @property
    def default_max_episode_steps(self):
        return self.cfg.get("own_limit", 1000)

    @property
    def num_reset_states(self):
        return self.cfg.get("states")

    def make_slot(self, slot):
        if slot == 0:
            self.places = getattr(self, "places", [None] * self.num_envs)
            self.made = getattr(self, "made", [])
        self.made.append(slot)
        self.places[slot] = None

    def reset_slot(self, slot, start):
        begin = float(start.reset_id if start.reset_id >= 0 else start.seed % 1000)
        self.places[slot] = [begin, begin, 0]
        return np.array(self.places[slot])

    def step_slot(self, slot, action):
        place = self.places[slot]
        place[1] += float(action[0])
        place[2] += 1
        if (slot, place[2]) == self.cfg.get("fail_at") and self.made.count(slot) == 1:
            raise ValueError("the motor is hot")
        success = place[1] - place[0] > 3
        obs, reward = np.array(place, dtype=np.float64), float(action[0])
        if (slot, place[2]) == self.cfg.get("nan_at"):
            obs[1] = np.nan
        if (slot, place[2]) == self.cfg.get("nan_reward_at"):
            reward = np.inf
        return obs, reward, success and self.cfg.get("terminates", False), False, success

    def render_slot(self, slot):
        return np.full((12, 10, 3), slot, dtype=np.uint8)

    def _describe(self, slot):
        return f"walk from {self.places[slot][0]:.0f}"


@pytest.fixture
def walk():
    """Makes a `WalkEnv`."""

    def make(num_envs=2, offset=0, processes=1, **cfg):
        return WalkEnv(cfg, num_envs, offset, processes)

    return make


@pytest.fixture
def several():
    """Makes a `WalkEnv` with three tasks: of 30 states, every third belongs to a task."""

    class SeveralWalks(WalkEnv):
        num_reset_states = 30
        task_names = ["near", "far", "back"]  # noqa: RUF012

        def task_states(self, task):
            return range(task, 30, 3)

    def make(num_envs=2, offset=0, processes=1, **cfg):
        return SeveralWalks(cfg, num_envs, offset, processes)

    return make


@pytest.fixture
def push():
    """Makes actions `[B, C, 2]` that all push forward by some amount."""

    def make(num_envs=2, chunk=1, amount=1.0):
        return torch.full((num_envs, chunk, 2), amount)

    return make


@pytest.fixture
def as_saved(tmp_path):
    """Returns the bytes that a checkpoint has of an env."""

    def save(env):
        save_tree(tmp_path / "state", env.get_state())
        return [(tmp_path / f"state.{kind}").read_bytes() for kind in ("json", "safetensors")]

    return save


@pytest.fixture(autouse=True)
def fresh_registries(monkeypatch):
    """Undoes registrations after every test."""
    # What registers itself when it is imported does so only once: not into a copy.
    for kind in plugins.KINDS:
        for name in plugins.known_names(kind):
            plugins.get_schema(kind, name)
    monkeypatch.delenv(plugins.EXT_VARIABLE, raising=False)
    monkeypatch.setattr(registry, "_targets", dict(registry._targets))
    monkeypatch.setattr(registry, "_own_keys", dict(registry._own_keys))
    monkeypatch.setattr(
        registry.SupportedEnvType, "_members", dict(registry.SupportedEnvType._members)
    )
    for name in ("_schemas", "_modules"):
        content = {kind: dict(names) for kind, names in getattr(plugins, name).items()}
        monkeypatch.setattr(plugins, name, content)
    monkeypatch.setattr(plugins, "_replaced", set(plugins._replaced))
    monkeypatch.setattr(plugins, "_extensions", set())
