"""A Gymnasium env with several choices at a time: press the keys that light up."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROWS, COLUMNS = 3, 4
STEPS = 8


class Keypad(gymnasium.Env):
    """A row and a column light up; each right one is worth half a point.

    In every second step the row to press is the one that lit up before, so that the value of a
    state is not the same everywhere.
    """

    observation_space = spaces.Box(0, 1, (2 * ROWS + COLUMNS + 1,), np.float32)
    action_space = spaces.MultiDiscrete([ROWS, COLUMNS], start=[1, -2])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.before = 0, 0
        return self._light(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        right = np.array([self.before if self.time % 2 else self.row, self.column]) + [1, -2]
        reward = 0.5 * float((action == right).sum())
        self.time, self.before = self.time + 1, self.row
        return self._light(), reward, self.time == STEPS, False, {}

    def _light(self) -> np.ndarray:
        self.row, self.column = (int(self.np_random.integers(n)) for n in (ROWS, COLUMNS))
        shown = np.zeros(self.observation_space.shape, np.float32)
        shown[[self.row, ROWS + self.before, 2 * ROWS + self.column]] = 1
        shown[-1] = self.time % 2
        return shown


gymnasium.register("Keypad-v0", Keypad)
