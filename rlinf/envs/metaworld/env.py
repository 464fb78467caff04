"""The MetaWorld adapter: which task and goal a reset state is, and what the policy sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rlinf.envs.action_utils import ActionSpec, Gripper
from rlinf.envs.errors import MissingSimulator
from rlinf.envs.metaworld.tasks import DESCRIPTIONS, GOAL_DIM, STATE_DIM, tasks_of
from rlinf.envs.options import option
from rlinf.envs.rendering import Cameras, choose_backend
from rlinf.envs.slots import SlotVectorEnv
from rlinf.envs.starts import Start
from rlinf.envs.step_result import ObsSpec
from rlinf.utils.extras import install_hint

GOAL = slice(STATE_DIM - GOAL_DIM, STATE_DIM)
"""Where the state holds the goal."""

TRIALS = 50
"""Goals per task."""

VIDEO_SIZE = 256
"""Height and width of pictures for people, in states-only runs."""


class MetaWorldEnv(SlotVectorEnv):
    """MetaWorld tasks with the goal in the observation, as in its MT benchmarks.

    Reset states: with `goals: trials`, state `50 * task + trial` is trial `trial` of the task, for
    the tasks in MetaWorld's order; the 50 trials of a task are those of `metaworld.MT1(task,
    goal_seed)`, which is 0 in training and 1 in evaluations unless the config names one. With
    `goals: random`, there is no list: the goal is drawn from the episode's seed (with
    `num_reset_states`, state `i` belongs to task `i mod tasks`).

    Success is MetaWorld's own `info["success"]`. MetaWorld never terminates an episode; it refuses
    to go on after 500 steps, and here after `max_episode_steps`.

    Slots change between tasks without making simulators anew: those not in use wait for the next
    slot that plays their task. As many wait as there are slots; a simulator takes about 30 MiB.
    """

    env_type = "metaworld"
    opens_quickly = True
    replays = False

    def _open(self) -> None:
        cfg = self.cfg
        self._obs_mode = option(cfg, "obs_mode", "state")
        self._size = int(option(cfg, "image_size", 84))
        self._main_camera = str(option(cfg, "camera_name", "corner2"))
        self._wrist_camera: str | None = option(cfg, "wrist_camera_name")
        self._extra_cameras = list(option(cfg, "extra_camera_names", []))
        save_video = option(option(cfg, "video_cfg", {}), "save_video", False)
        self._pictures = self._obs_mode != "state" or save_video
        if self._pictures:
            choose_backend()
        try:
            from rlinf.envs.metaworld import simulator
        except ImportError as error:
            raise MissingSimulator(
                f"MetaWorld cannot be imported ({error}): {install_hint('embodied')}"
            ) from error
        self._simulator = simulator
        task = str(option(cfg, "task", "button-press-v3"))
        self.tasks = tasks_of(*map(str, option(cfg, "tasks", [task])))
        self._random_goals = option(cfg, "goals", "trials") == "random"
        self._goal_seed: int | None = option(cfg, "goal_seed")
        self._sparse = option(cfg, "reward", "dense") == "success"
        self._reward_version = option(cfg, "reward_function_version", "v2")
        self._terminate = bool(option(cfg, "terminate_on_success", False))
        self._one_hot = np.eye(len(self.tasks), dtype=np.float32)
        self._uses_one_hot = bool(option(cfg, "task_one_hot", len(self.tasks) > 1))
        entries = option(cfg, "state_entries")
        self._entries = None if entries is None else list(entries)
        self._hides_goal = bool(option(cfg, "hide_goal", False))
        self._swaps = bool(option(cfg, "swap_instructions", False))
        self._shows_all = not (self._uses_one_hot or self._hides_goal or self._entries)
        self._caches = bool(option(cfg, "cache_resets", True)) and not self._random_goals
        self._cache: dict[tuple[int, int], tuple[Any, np.ndarray]] = {}
        self._goals: dict[tuple[int, int], list[np.ndarray]] = {}
        self._waiting: list[tuple[int, Any]] = []
        self._cameras: dict[tuple[int, int], Cameras] = {}
        self._task_of: list[int] = [-1] * self.num_envs
        self._sims: list[Any] = [None] * self.num_envs
        if self._obs_mode != "state":
            self.rendered_keys = frozenset(self._views)
        super()._open()

    @cached_property
    def obs_spec(self) -> dict[str, ObsSpec]:
        """States `[39]`, fewer or plus one entry per task on request, and images on request.

        Images are `main_images` and, from further cameras of the config, `wrist_images` and
        `extra_view_images` `[V, H, W, 3]`.
        """
        spec = {}
        if self._obs_mode != "image":
            extra = len(self.tasks) if self._uses_one_hot else 0
            own = STATE_DIM if self._entries is None else len(self._entries)
            spec["states"] = ObsSpec((own + extra,))
        if self._obs_mode != "state":
            spec |= self._views
        return spec

    @property
    def _views(self) -> dict[str, ObsSpec]:
        """Shapes of the groups of cameras that are drawn."""
        picture = self._size, self._size, 3
        views = {"main_images": ObsSpec(picture, np.uint8)}
        if self._wrist_camera is not None:
            views["wrist_images"] = ObsSpec(picture, np.uint8)
        if self._extra_cameras:
            count = len(self._extra_cameras)
            views["extra_view_images"] = ObsSpec((count, *picture), np.uint8)
        return views

    @cached_property
    def action_spec(self) -> ActionSpec:
        """Motion of the hand in x, y and z, and effort of the gripper (1 closes it)."""
        return ActionSpec.box(-np.ones(4), np.ones(4), gripper=Gripper(3, opened=-1, closed=1))

    @property
    def default_max_episode_steps(self) -> int:
        """MetaWorld's own limit."""
        return 500

    @property
    def num_reset_states(self) -> int | None:
        """50 per task; with random goals what the config says."""
        return super().num_reset_states if self._random_goals else TRIALS * len(self.tasks)

    @property
    def task_names(self) -> list[str]:
        """MetaWorld's own names."""
        return list(self.tasks)

    @property
    def instructions(self) -> list[str]:
        """What is to be done, in words."""
        return [DESCRIPTIONS[task] for task in self.tasks]

    def task_states(self, task: int) -> range:
        """Return the 50 trials of a task, or with random goals every so many-th state."""
        if self._random_goals:
            return range(task, self.num_reset_states or 0, len(self.tasks))
        return range(TRIALS * task, TRIALS * (task + 1))

    def start_list(self, evaluation: bool) -> tuple | None:
        """Return the tasks and the seed of their trials; random goals have no list."""
        return None if self._random_goals else (*self.tasks, self._trials_seed(evaluation))

    def make_slot(self, slot: int) -> None:
        """Make the simulator of a single task; those of many are made when first needed."""
        self._sims[slot], self._task_of[slot] = None, -1
        if len(self.tasks) == 1:
            self._take(slot, 0)

    def reset_slot(self, slot: int, start: Start) -> np.ndarray:
        """Begin a trial; from the second time on, by restoring the state after its reset."""
        if self._random_goals:
            rng = np.random.default_rng(start.seed)
            # A first draw is left out: seeds give the goals that they always gave.
            rng.integers(len(self.tasks))
            sim = self._take(slot, max(0, start.reset_id) % len(self.tasks))
            return self._state(slot, sim.reset(sim.random_goal(rng)))
        goal_seed = self._trials_seed(self.evaluates)
        known = self._cache.get((goal_seed, start.reset_id))
        task, trial = divmod(start.reset_id, TRIALS)
        sim = self._take(slot, task)
        if known:
            sim.restore(known[0])
            return self._state(slot, known[1])
        if (goal_seed, task) not in self._goals:
            self._goals[goal_seed, task] = sim.trial_goals(goal_seed)
        obs = sim.reset(self._goals[goal_seed, task][trial])
        if self._caches:
            self._cache[goal_seed, start.reset_id] = sim.snapshot(), obs
        return self._state(slot, obs)

    def step_slot(
        self, slot: int, action: np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, bool]:
        """Make a step of the simulator."""
        obs, reward, _, truncated, info = self._sims[slot].step(action)
        success = info["success"] > 0
        if self._sparse:
            reward = float(success)
        if not self._shows_all:
            obs = self._state(slot, obs)
        return obs, reward, success and self._terminate, truncated, success

    def render_slot(self, slot: int) -> np.ndarray:
        """Return a picture from the main camera."""
        size = max(self._size, VIDEO_SIZE) if self._obs_mode == "state" else self._size
        return self._picture(slot, size, self._main_camera)

    def close_slot(self, slot: int) -> None:
        """Free the simulator of a slot."""
        if self._sims[slot] is not None:
            self._sims[slot].close()

    def close(self) -> None:
        """Free simulators and cameras."""
        super().close()
        for _, sim in self._waiting:
            sim.close()
        self._waiting.clear()
        self.offload()

    def offload(self) -> None:
        """Free the OpenGL contexts; they come back when pictures are drawn again."""
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()

    def get_slot_state(self, slot: int) -> Any:
        """Return the task and the full state of its simulation."""
        sim = self._sims[slot]
        # A plain tuple: whoever reads it needs no MetaWorld to unpickle it.
        return None if sim is None else (self._task_of[slot], *map(_plain, sim.snapshot()))

    def set_slot_state(self, slot: int, state: Any) -> None:
        """Go on from such a state."""
        if state is not None:
            task, physics, moved, attributes, warnings = state
            views = {
                name: self._simulator.View(**value["view"]) if _is_view(value) else value
                for name, value in attributes.items()
            }
            snapshot = self._simulator.Snapshot(physics, moved, views, warnings)
            self._take(slot, task).restore(snapshot)

    def _trials_seed(self, evaluation: bool) -> int:
        return int(evaluation) if self._goal_seed is None else self._goal_seed

    def _take(self, slot: int, task: int) -> Any:
        """Put a simulator of a task into a slot."""
        if self._task_of[slot] != task:
            if self._sims[slot] is not None:
                self._waiting.append((self._task_of[slot], self._sims[slot]))
            found = [place for place, (other, _) in enumerate(self._waiting) if other == task]
            self._sims[slot] = self._waiting.pop(found[-1])[1] if found else self._make(task)
            self._task_of[slot] = task
            if len(self._waiting) > self.num_envs:
                # The one that has waited longest.
                self._waiting.pop(0)[1].close()
        return self._sims[slot]

    def _make(self, task: int) -> Any:
        horizon = self.options.max_episode_steps
        return self._simulator.Simulator(self.tasks[task], horizon, self._reward_version)

    def expert_obs(self, obs: dict[str, Any]) -> dict[str, Any]:
        """See `Adapter.expert_obs`: the whole state, and what the task really is."""
        if self._shows_all and not self._swaps and self._obs_mode != "image":
            return obs
        states = np.zeros((self.num_envs, STATE_DIM), np.float32)
        words = [""] * self.num_envs
        for slot, sim in enumerate(self._sims):
            if sim is not None:
                states[slot] = sim.state()
                words[slot] = self.instructions[self._task_of[slot]]
        return obs | {"states": torch.from_numpy(states), "task_descriptions": words}

    def _state(self, slot: int, obs: np.ndarray) -> np.ndarray:
        """Return what of a state the policy sees."""
        if self._shows_all:
            return obs
        obs = obs.copy()
        if self._hides_goal:
            obs[GOAL] = 0
        if self._entries is not None:
            obs = obs[self._entries]
        if self._uses_one_hot:
            obs = np.concatenate([obs, self._one_hot[self._task_of[slot]]])
        return obs

    def _describe(self, slot: int) -> str:
        return self.instructions[(self._task_of[slot] + self._swaps) % len(self.tasks)]

    def _diverged(self, slot: int) -> str:
        return self._simulator.DIVERGED if self._sims[slot].diverged() else ""

    def _draw_images(self, slots: Sequence[int], images: dict) -> None:
        if option(self.cfg, "blank_images", False):
            return
        for slot in slots:
            if self._sims[slot] is None:
                continue
            images["main_images"][slot] = self._picture(slot, self._size, self._main_camera)
            if self._wrist_camera is not None:
                images["wrist_images"][slot] = self._picture(slot, self._size, self._wrist_camera)
            for view, name in enumerate(self._extra_cameras):
                images["extra_view_images"][slot, view] = self._picture(slot, self._size, name)

    def _picture(self, slot: int, size: int, name: str) -> np.ndarray:
        """Draw a slot with the cameras that all slots with the same task share."""
        key = self._task_of[slot], size
        if key not in self._cameras:
            fast = bool(option(self.cfg, "fast_render", True)) and size < VIDEO_SIZE
            self._cameras[key] = Cameras(self._sims[slot].env.model, size, size, fast)
        # MetaWorld hung the corner cameras upside down.
        turned = name.startswith("corner")
        return self._cameras[key].draw(self._sims[slot].env.data, name, turned)


def _is_view(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"view"}


def _plain(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {
        name: {"view": value._asdict()} if hasattr(value, "_asdict") else value
        for name, value in part.items()
    }
