"""Navigation by instruction: an agent looks for the landmark that a text names, and stops."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.navigation.landmarks import COLOURS, SHAPES, landmark_names
from rlinf.envs.navigation.pictures import TILE
from rlinf.envs.navigation.world import Move, World
from rlinf.envs.options import option
from rlinf.envs.slots import SlotObs, SlotVectorEnv
from rlinf.envs.starts import Start
from rlinf.envs.step_result import ObsSpec

PROGRESS = 0.1
"""Dense reward of a cell nearer to the goal."""


class NavigationEnv(SlotVectorEnv):
    """Worlds in numpy, of which the agent sees the cells ahead of it as a picture.

    Actions are those of `Move`. A stop ends the episode: with success if the agent is beside the
    landmark that the instruction names. There is a task for each kind of landmark; the seed of an
    episode draws the world, with other landmarks in it, and where the agent begins.
    """

    env_type = "navigation"
    opens_quickly = True

    def _open(self) -> None:
        colours = list(option(self.cfg, "colours", list(COLOURS)))
        shapes = list(option(self.cfg, "shapes", list(SHAPES)))
        self._landmarks = landmark_names()
        self._names = [f"{colour} {shape}" for colour in colours for shape in shapes]
        self._kinds = [self._landmarks.index(name) for name in self._names]
        sizes = {"size": 7, "rooms": 1, "landmarks": 3, "view": 5}
        self._sizes = {key: int(option(self.cfg, key, size)) for key, size in sizes.items()}
        if self._sizes["landmarks"] > len(self._kinds):
            raise ValueError(
                f"there are {len(self._kinds)} kinds of landmarks, {', '.join(self._names)}, which "
                f"is less than landmarks {self._sizes['landmarks']}: add colours or shapes"
            )
        self._dense = option(self.cfg, "reward", "dense") == "dense"
        self._swaps = bool(option(self.cfg, "swap_instructions", False))
        if self._swaps and self._sizes["landmarks"] < 2:
            raise ValueError("swap_instructions needs another landmark to name: set landmarks to 2")
        self._worlds: list[World | None] = [None] * self.num_envs
        self._world(Start(0, 0))  # Says so if there is no room for the landmarks.
        super()._open()

    def _world(self, start: Start) -> World:
        goal = self._kinds[start.reset_id % len(self._kinds)]
        return World(start.seed, goal, kinds=self._kinds, **self._sizes)

    @cached_property
    def obs_spec(self) -> dict[str, ObsSpec]:
        """The cells ahead, as a picture."""
        side = self._sizes["view"] * TILE
        return {"main_images": ObsSpec((side, side, 3), np.uint8)}

    @cached_property
    def action_spec(self) -> ActionSpec:
        """One of `Move`."""
        return ActionSpec.choice(len(Move))

    @property
    def default_max_episode_steps(self) -> int:
        """Enough to look around and to cross the world."""
        return 6 * self._sizes["size"]

    @property
    def task_names(self) -> list[str]:
        """The kinds of landmarks."""
        return self._names

    @property
    def instructions(self) -> list[str]:
        """What is to be done, in words."""
        return [f"go to the {name}" for name in self._names]

    def task_states(self, task: int) -> range:
        """Return every so many-th state."""
        return range(task, self.num_reset_states or 0, len(self._names))

    def make_slot(self, slot: int) -> None:
        """Forget the world of a slot: each episode has a new one."""
        self._worlds[slot] = None

    def reset_slot(self, slot: int, start: Start) -> SlotObs:
        """Draw the world of an episode."""
        self._worlds[slot] = self._world(start)
        return {"main_images": self._worlds[slot].look()}

    def step_slot(self, slot: int, action: np.ndarray) -> tuple[SlotObs, float, bool, bool, bool]:
        """Move the agent."""
        world, move = self._worlds[slot], int(action[0])
        before = world.distance
        world.move(move)
        stops = move == Move.STOP
        success = stops and world.is_there
        reward = float(success)
        if self._dense:
            reward += PROGRESS * (before - world.distance)
        return {"main_images": world.look()}, reward, stops, False, success

    def render_slot(self, slot: int) -> np.ndarray:
        """Return the whole world from above."""
        return self._worlds[slot].look_down().repeat(4, 0).repeat(4, 1)

    def _describe(self, slot: int) -> str:
        named = self._worlds[slot].landmarks[1 if self._swaps else 0]
        return f"go to the {self._landmarks[named]}"
