"""The arrays that a step of a simulator fills."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ObsSpec(NamedTuple):
    """Shape and dtype of one slot's observation under one key."""

    shape: tuple[int, ...]
    dtype: type = np.float32


class StepResult:
    """Rewards and flags of one step in all slots; made once and filled again and again.

    Attributes:
        reward: float64 `[B]`.
        terminated: bool `[B]`; the task is over.
        truncated: bool `[B]`; the simulator cuts the episode off.
        success: bool `[B]`; the task is solved now.
    """

    def __init__(self, num_envs: int) -> None:
        """Makes the arrays."""
        self.reward = np.zeros(num_envs, np.float64)
        self.terminated = np.zeros(num_envs, bool)
        self.truncated = np.zeros(num_envs, bool)
        self.success = np.zeros(num_envs, bool)

    def clear(self) -> None:
        """Sets everything to zero, for slots that are not stepped."""
        for array in (self.reward, self.terminated, self.truncated, self.success):
            array[:] = 0

    def drop(self, slots: list[int]) -> None:
        """Cuts off the episodes of slots, without a reward."""
        self.reward[slots] = 0
        self.terminated[slots] = False
        self.success[slots] = False
        self.truncated[slots] = True
