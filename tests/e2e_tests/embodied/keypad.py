"""A Gymnasium env with several choices at a time: press the keys that light up."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROWS, COLUMNS = 3, 4
STEPS = 8


class Keypad(gymnasium.Env):
    """A row and a column light up; each right one is worth half a point."""

    observation_space = spaces.Box(0, 1, (ROWS + COLUMNS,), np.float32)
    action_space = spaces.MultiDiscrete([ROWS, COLUMNS], start=[1, -2])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._light(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = 0.5 * float((action - self.action_space.start == self.lit).sum())
        self.time += 1
        return self._light(), reward, self.time == STEPS, False, {}

    def _light(self) -> np.ndarray:
        self.lit = self.np_random.integers([ROWS, COLUMNS])
        shown = np.zeros(self.observation_space.shape, np.float32)
        shown[self.lit + [0, ROWS]] = 1
        return shown


gymnasium.register("Keypad-v0", Keypad, max_episode_steps=STEPS + 1)
