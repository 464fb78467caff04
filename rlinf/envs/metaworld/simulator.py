"""One MetaWorld task in MuJoCo: chosen goals, quick resets, and states that can be kept.

It touches private parts of MetaWorld 3.1.1, to which the package is pinned:

- A reset in MetaWorld simulates the arm's way to its first position twice and throws the first one
  away, keeping only where it put the objects. Here the objects are put there without simulating.
  The results are equal to the last bit in all 50 tasks.
- A reset depends only on the *random vector*, the positions of objects and goal.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import mujoco
import numpy as np
from gymnasium.spaces import Space
from metaworld.sawyer_xyz_env import SawyerXYZEnv

from rlinf.envs.metaworld.quick import is_known, quick_class
from rlinf.envs.mujoco_utils import DIVERGED, physics_diverged

__all__ = ["DIVERGED", "Simulator", "Snapshot", "View"]

NUM_TRIALS = 50
"""Goals per task, as in the benchmark."""

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_MOVED = ("body_pos", "site_pos")
_VIEWED = ("xpos", "xquat", "xipos", "site_xpos", "geom_xpos", "mocap_pos", "qpos")
_KEPT_OUT = frozenset(
    {
        "model",
        "data",
        "mujoco_renderer",
        "render_mode",
        "_np_random",
        "_np_random_seed",
        "handles",
        "bounds",
    }
)


class Snapshot(NamedTuple):
    """Everything that a task's simulation depends on, free of the object that simulates it.

    Attributes:
        physics: MuJoCo's integration state.
        moved: Fields of the model that a reset changes.
        attributes: Python side; a `View` stands for an array that looks into MuJoCo's memory.
        warnings: How often MuJoCo warned of what in this episode, int `[W]`.
    """

    physics: np.ndarray
    moved: tuple[np.ndarray, ...]
    attributes: dict[str, Any]
    warnings: np.ndarray


class View(NamedTuple):
    """A part of one of MuJoCo's arrays.

    Attributes:
        field: Name of the array in MjData.
        begin: First entry, counted flat.
        shape: Of the part.
    """

    field: str
    begin: int
    shape: tuple[int, ...]


class Simulator:
    """A MetaWorld env whose goals are given, not drawn.

    Attributes:
        env: The env; its observations show the goal, as in the MT benchmarks.
    """

    def __init__(self, task: str, horizon: int | None = None, reward_version: str = "v2") -> None:
        """Make the env.

        Args:
            task: Name of the task.
            horizon: Steps after which MetaWorld refuses to go on; None keeps its own 500.
            reward_version: Version of the reward function.
        """
        self.env = env = quick_class(task)(reward_function_version=reward_version)
        env._set_task_called = True
        env._freeze_rand_vec = True
        env._partially_observable = False
        # It depends on what is observable, and was made before that was said.
        del env.sawyer_observation_space
        if horizon is not None:
            env.max_path_length = horizon
        self.step = env.step

    def trial_goals(self, seed: int) -> list[np.ndarray]:
        """Return the random vectors of the task's 50 trials: those of `metaworld.MT1(task, seed)`.

        Args:
            seed: Seed of the benchmark.

        Returns:
            50 vectors.
        """
        env, goals = self.env, []
        # MetaWorld draws from numpy's global generator.
        before = np.random.get_state()
        np.random.seed(seed)
        env._freeze_rand_vec = env.seeded_rand_vec = False
        try:
            with self._arm_at_rest():
                for _ in range(NUM_TRIALS):
                    env.reset()
                    goals.append(env._last_rand_vec.copy())
        finally:
            env._freeze_rand_vec = True
            np.random.set_state(before)
        return goals

    def random_goal(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a random vector as MetaWorld would, with its rejections.

        Args:
            rng: Where randomness comes from.

        Returns:
            The vector.
        """
        env = self.env
        env._freeze_rand_vec, env.seeded_rand_vec, env.np_random = False, True, rng
        try:
            with self._arm_at_rest():
                env.reset_model()
        finally:
            env._freeze_rand_vec, env.seeded_rand_vec = True, False
        return env._last_rand_vec.copy()

    def reset(self, goal: np.ndarray) -> np.ndarray:
        """Begin an episode.

        Args:
            goal: Random vector.

        Returns:
            The observation `[39]`.
        """
        env = self.env
        env._last_rand_vec = goal.copy()
        # A step sets it and a stock reset leaves it: it would depend on the episode before.
        env._last_stable_obs = None
        if not is_known():
            return env.reset()[0]
        env.curr_path_length = 0
        with self._arm_at_rest():
            env.reset_model()
        obs, _ = super(SawyerXYZEnv, env).reset()
        env._prev_obs = obs[:18].copy()
        obs[18:36] = env._prev_obs
        return obs

    def state(self) -> np.ndarray:
        """Return the observation `[39]` now, with the present frame in the place of the last."""
        env = self.env
        now = env._get_curr_obs_combined_no_goal()
        space = env.sawyer_observation_space
        return np.clip(np.concatenate((now, now, env._get_pos_goal())), space.low, space.high)

    def snapshot(self) -> Snapshot:
        """Return the state of the simulation."""
        env = self.env
        physics = np.empty(mujoco.mj_stateSize(env.model, _STATE))
        mujoco.mj_getState(env.model, env.data, physics, _STATE)
        moved = tuple(getattr(env.model, field).copy() for field in _MOVED)
        attributes = {name: self._keep(env.__dict__[name]) for name in self._attributes()}
        return Snapshot(physics, moved, attributes, env.data.warning.number.copy())

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a state, of this or another simulator of the task."""
        env = self.env
        for field, content in zip(_MOVED, snapshot.moved, strict=True):
            getattr(env.model, field)[:] = content
        # What is computed from the state first; that changes the solver's warm start.
        mujoco.mj_setState(env.model, env.data, snapshot.physics, _STATE)
        mujoco.mj_forward(env.model, env.data)
        mujoco.mj_setState(env.model, env.data, snapshot.physics, _STATE)
        env.data.warning.number[:] = snapshot.warnings
        attributes = env.__dict__
        for name in self._attributes():
            if name not in snapshot.attributes:
                # It was made after the snapshot was taken.
                del attributes[name]
        for name, value in snapshot.attributes.items():
            if isinstance(value, np.ndarray):
                value = value.copy()
            elif isinstance(value, View):
                size = int(np.prod(value.shape))
                whole = getattr(env.data, value.field).reshape(-1)
                value = whole[value.begin : value.begin + size].reshape(value.shape)
            elif isinstance(value, (list, dict)):
                value = copy.deepcopy(value)
            attributes[name] = value

    def diverged(self) -> bool:
        """Return whether MuJoCo met a NaN in this episode and quietly began anew, as it does."""
        return physics_diverged(self.env.data)

    def close(self) -> None:
        """Free the env."""
        self.env.close()

    def _attributes(self) -> list[str]:
        """Return the names of the env's attributes that are part of its state, in order."""
        return sorted(
            name
            for name, value in self.env.__dict__.items()
            if name not in _KEPT_OUT and not callable(value) and not isinstance(value, Space)
        )

    def _keep(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return copy.deepcopy(value) if isinstance(value, (list, dict)) else value
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return value.copy() if owner.base is None else self._find(value)

    def _find(self, value: np.ndarray) -> View:
        address = value.__array_interface__["data"][0]
        for field in _VIEWED:
            whole = getattr(self.env.data, field)
            begin = address - whole.__array_interface__["data"][0]
            if 0 <= begin < whole.nbytes:
                return View(field, begin // whole.itemsize, value.shape)
        raise AssertionError("an attribute looks into an array of MuJoCo that is not in _VIEWED")

    @contextmanager
    def _arm_at_rest(self) -> Iterator[None]:
        """Inside, MetaWorld's reset places objects but does not simulate the arm."""
        env = self.env

        def stay(steps: int = 50) -> None:
            mujoco.mj_forward(env.model, env.data)
            env.init_tcp = env.tcp_center

        env._reset_hand = stay
        try:
            yield
        finally:
            del env._reset_hand
