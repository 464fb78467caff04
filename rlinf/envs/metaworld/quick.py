"""MetaWorld's step with the same results in less time.

Of a stock step more than half is spent in Python around the physics, most of it in gathering the
observation. `quick_class` replaces that part by one that computes the same numbers, to the last
bit, in all 50 tasks. Rewards and success are MetaWorld's own code. It also compiles a task's model
once per process instead of once per object.

Written for MetaWorld 3.1.1; another version is used as it is.
"""

from __future__ import annotations

import copy
import math
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.sawyer_xyz_env import SawyerXYZEnv

SUPPORTED = "3.1.1"
"""Version of MetaWorld whose insides this module knows."""

_UPRIGHT = np.array([1, 0, 1, 0])


@cache
def is_known() -> bool:
    """Return whether the installed MetaWorld is the one that this module was written for."""
    return version("metaworld") == SUPPORTED


class Handles(NamedTuple):
    """Places in the memory of a simulation that every step reads or writes.

    Attributes:
        xpos: Positions of all bodies.
        mocap_pos: Where the hand is drawn to, `[1, 3]`.
        mocap_quat: And how it is turned.
        ctrl: Efforts of the two fingers.
        hand: Index of the hand's body.
        right: Index of the right finger's body.
        left: Index of the left finger's body.
    """

    xpos: np.ndarray
    mocap_pos: np.ndarray
    mocap_quat: np.ndarray
    ctrl: np.ndarray
    hand: int
    right: int
    left: int


class QuickMixin:
    """Replaces parts of `SawyerXYZEnv`; `handles` and `bounds` are no part of its state."""

    handles: Handles | None = None
    bounds: tuple[np.ndarray, np.ndarray] | None = None

    def find_handles(self) -> Handles:
        """Look names up, once."""
        data = self.data
        if data.mocap_pos.shape != (1, 3):
            raise AssertionError("the quick step knows one hand only")
        ids = [data.body(name).id for name in ("hand", "rightclaw", "leftclaw")]
        arrays = data.xpos, data.mocap_pos, data.mocap_quat, data.ctrl
        self.handles = Handles(*arrays, *ids)
        return self.handles

    def do_simulation(self, ctrl: Any, n_frames: int) -> None:
        """Let time pass with given efforts of the fingers."""
        handles = self.handles or self.find_handles()
        handles.ctrl[:] = ctrl
        mujoco.mj_step(self.model, self.data, nstep=n_frames)
        mujoco.mj_rnePostConstraint(self.model, self.data)

    def _get_curr_obs_combined_no_goal(self) -> np.ndarray:
        handles = self.handles or self.find_handles()
        xpos = handles.xpos
        obs = np.zeros(18)
        obs[:3] = xpos[handles.hand]
        apart = xpos[handles.right] - xpos[handles.left]
        obs[3] = min(max(math.sqrt(apart.dot(apart)) / 0.1, 0.0), 1.0)
        positions, turns = self._get_pos_objects(), self._get_quat_objects()
        for index in range(len(positions) // 3):
            begin = 4 + 7 * index
            obs[begin : begin + 3] = positions[3 * index : 3 * index + 3]
            obs[begin + 3 : begin + 7] = turns[4 * index : 4 * index + 4]
        return obs

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Make a step; the same as MetaWorld's."""
        if self.curr_path_length >= self.max_path_length:
            raise ValueError("the episode is over: reset the env")
        handles = self.handles or self.find_handles()
        target = handles.mocap_pos[0] + _clip(action[:3], -1, 1) * self.action_scale
        handles.mocap_pos[0] = _clip(target, self.mocap_low, self.mocap_high)
        handles.mocap_quat[:] = _UPRIGHT
        self.do_simulation((action[-1], -action[-1]), self.frame_skip)
        self.curr_path_length += 1
        mujoco.mj_forward(self.model, self.data)
        if self.bounds is None:
            space = self.sawyer_observation_space
            self.bounds = space.low, space.high
        now = self._get_curr_obs_combined_no_goal()
        obs = np.concatenate((now, self._prev_obs, self._get_pos_goal()))
        self._prev_obs = now
        np.maximum(obs, self.bounds[0], out=obs)
        np.minimum(obs, self.bounds[1], out=obs)
        self._last_stable_obs = obs
        reward, info = self.evaluate_state(obs, action)
        return obs.copy(), reward, False, self.curr_path_length == self.max_path_length, info


def _clip(values: np.ndarray, low: Any, high: Any) -> np.ndarray:
    return np.minimum(np.maximum(values, low), high)


@cache
def quick_class(task: str) -> type[SawyerXYZEnv]:
    """Return the class of a task, made quick if the version of MetaWorld is known.

    Args:
        task: Name of the task.

    Returns:
        A subclass of MetaWorld's, with the goal in the observation.
    """
    stock = ALL_V3_ENVIRONMENTS[task]
    compiled: list[Any] = []

    def initialize(self: Any) -> tuple[Any, Any]:
        if not compiled:
            compiled.append(stock._initialize_simulation(self)[0])
        model = copy.copy(compiled[0])
        return model, mujoco.MjData(model)

    if not is_known():
        return stock
    return type(stock.__name__, (QuickMixin, stock), {"_initialize_simulation": initialize})
