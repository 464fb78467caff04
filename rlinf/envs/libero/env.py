"""The LIBERO adapter.

Written against the public API of LIBERO (`benchmark.get_benchmark_dict`, `OffScreenRenderEnv`,
`set_init_state`) and tested against a small fake of it: its meshes and textures are a download that
was not available where this was written. It has not run with the real one.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from typing import Any

import numpy as np

from rlinf.config.suggest import did_you_mean, listed
from rlinf.envs.action_utils import ActionSpec, Gripper
from rlinf.envs.errors import MissingSimulator
from rlinf.envs.options import map_option, option
from rlinf.envs.rendering import choose_backend
from rlinf.envs.slots import SlotVectorEnv
from rlinf.envs.starts import Start
from rlinf.envs.step_result import ObsSpec

REST = np.array([0, 0, 0, 0, 0, 0, -1], dtype=np.float32)
"""Stay where you are, gripper open."""


class LiberoEnv(SlotVectorEnv):
    """Tasks of a LIBERO suite from their stored initial states.

    Reset states are the stored initial states of all tasks, one task after the other; after a reset
    the arm rests `settle_steps` steps. Observations: `main_images` (agentview) and `wrist_images`,
    turned upright, and `states`: hand position (3), its rotation vector (3), finger positions (2).
    The reward is LIBERO's (1 when solved), and solving the task terminates the episode. Evaluations
    begin in the same stored states as training, as LIBERO has no others.
    """

    env_type = "libero"

    def _open(self) -> None:
        choose_backend()
        try:
            from libero.libero import benchmark, get_libero_path
            from libero.libero.envs import OffScreenRenderEnv
        except ImportError as error:
            raise MissingSimulator(
                f"LIBERO cannot be imported ({error}): pip install rlinf-libero, in an environment "
                "of its own since it needs numpy<2, and fetch its assets as its pages say"
            ) from error
        self._make_env, self._folder = OffScreenRenderEnv, get_libero_path("bddl_files")
        suites = benchmark.get_benchmark_dict()
        name = str(option(self.cfg, "task_suite_name", ""))
        if name not in suites:
            raise ValueError(
                f"LIBERO has no task suite '{name}'; known: {listed(suites)}. "
                f"{did_you_mean(name, suites)}".rstrip()
            )
        suite = suites[name]()
        ids = list(option(self.cfg, "task_ids", [])) or list(range(suite.n_tasks))
        wrong = [index for index in ids if not 0 <= index < suite.n_tasks]
        if wrong:
            raise ValueError(f"task_ids {wrong} are not in {name}, which has {suite.n_tasks} tasks")
        self.tasks = [suite.get_task(index) for index in ids]
        self._states = [np.asarray(suite.get_task_init_states(index)) for index in ids]
        self._ends = np.cumsum([len(states) for states in self._states])
        self._size = int(option(self.cfg, "image_size", 256))
        self._settle = int(option(self.cfg, "settle_steps", 15))
        self._envs: list[Any] = [None] * self.num_envs
        self._task_of = [-1] * self.num_envs
        self._pictures: list[Any] = [None] * self.num_envs
        super()._open()

    @cached_property
    def obs_spec(self) -> dict[str, ObsSpec]:
        """States and two views."""
        view = ObsSpec((self._size, self._size, 3), np.uint8)
        return {"states": ObsSpec((8,)), "main_images": view, "wrist_images": view}

    @cached_property
    def action_spec(self) -> ActionSpec:
        """Motion of the hand, its rotation, and the gripper (1 closes it)."""
        gripper = Gripper(6, opened=-1, closed=1, binary=True)
        return ActionSpec.box(-np.ones(7), np.ones(7), gripper=gripper)

    @property
    def default_max_episode_steps(self) -> int:
        """Enough for the longest suite."""
        return 512

    @property
    def num_reset_states(self) -> int:
        """Stored initial states of all tasks."""
        return int(self._ends[-1])

    @property
    def task_names(self) -> list[str]:
        """LIBERO's own names."""
        return [str(task.name) for task in self.tasks]

    def task_states(self, task: int) -> range:
        """Return the stored initial states of a task."""
        return range(int(self._ends[task]) - len(self._states[task]), int(self._ends[task]))

    def start_list(self, evaluation: bool) -> tuple:
        """Return the tasks: their stored states are all that there are."""
        return tuple(self.task_names)

    def make_slot(self, slot: int) -> None:
        """Envs belong to a task: they are made when it is known."""
        self.close_slot(slot)

    def reset_slot(self, slot: int, start: Start) -> dict[str, np.ndarray]:
        """Set a stored state and let objects come to rest."""
        task = int(np.searchsorted(self._ends, start.reset_id, side="right"))
        trial = start.reset_id - (int(self._ends[task - 1]) if task else 0)
        if self._task_of[slot] != task:
            self.close_slot(slot)
            made = self.tasks[task]
            self._envs[slot] = self._make_env(
                bddl_file_name=os.path.join(self._folder, made.problem_folder, made.bddl_file),
                camera_heights=self._size,
                camera_widths=self._size,
                **map_option(self.cfg, "init_params"),
            )
            self._task_of[slot] = task
        env = self._envs[slot]
        env.seed(start.seed)
        env.reset()
        obs = env.set_init_state(self._states[task][trial])
        for _ in range(self._settle):
            obs, *_ = env.step(REST)
        return self._read(slot, obs)

    def step_slot(
        self, slot: int, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, bool]:
        """Make a step."""
        obs, reward, done, _ = self._envs[slot].step(action)
        return self._read(slot, obs), reward, bool(done), False, bool(done)

    def render_slot(self, slot: int) -> np.ndarray:
        """Return the main view of the last step."""
        return self._pictures[slot]

    def close_slot(self, slot: int) -> None:
        """Close an env."""
        if self._envs[slot] is not None:
            self._envs[slot].close()
            self._envs[slot], self._task_of[slot] = None, -1

    def _read(self, slot: int, obs: dict[str, Any]) -> dict[str, np.ndarray]:
        # The cameras hang upside down.
        main = obs["agentview_image"][::-1, ::-1]
        self._pictures[slot] = main
        parts = (
            obs["robot0_eef_pos"],
            rotation_vector(obs["robot0_eef_quat"]),
            obs["robot0_gripper_qpos"],
        )
        return {
            "states": np.concatenate(parts),
            "main_images": main,
            "wrist_images": obs["robot0_eye_in_hand_image"][::-1, ::-1],
        }

    def _describe(self, slot: int) -> str:
        return self.tasks[self._task_of[slot]].language


def rotation_vector(quaternion: np.ndarray) -> np.ndarray:
    """Turn a unit quaternion (x, y, z, w) into axis times angle, `[3]`.

    Args:
        quaternion: `[4]`.

    Returns:
        The rotation vector; zero for no rotation.
    """
    part, w = np.asarray(quaternion[:3], dtype=np.float64), float(quaternion[3])
    length = float(np.linalg.norm(part))
    if math.isclose(length, 0.0):
        return np.zeros(3)
    return part / length * (2 * math.atan2(length, w))
