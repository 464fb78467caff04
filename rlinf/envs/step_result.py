"""The arrays that a step of a simulator fills."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class ObsSpec(NamedTuple):
    """Shape and dtype of one slot's observation under one key."""

    shape: tuple[int, ...]
    dtype: type = np.float32


class StepResult:
    """Rewards and flags of one step in all slots; made once and filled again and again.

    Flags are false when a step begins, and rewards of slots that are not stepped are 0.

    Attributes:
        reward: float64 `[B]`.
        terminated: bool `[B]`; the task is over.
        truncated: bool `[B]`; the simulator cuts the episode off.
        success: bool `[B]`; the task is solved now.
        interventions: By slot, the action `[A]` that was carried out instead of the one given.
    """

    def __init__(self, num_envs: int) -> None:
        """Make the arrays."""
        self.reward = np.zeros(num_envs, np.float64)
        self.terminated = np.zeros(num_envs, bool)
        self.truncated = np.zeros(num_envs, bool)
        self.success = np.zeros(num_envs, bool)
        self.interventions: dict[int, np.ndarray] = {}

    def mark(self, slot: int, terminated: bool, truncated: bool, success: bool) -> None:
        """Set the flags of one slot."""
        self.terminated[slot], self.truncated[slot] = terminated, truncated
        self.success[slot] = success

    def mark_all(
        self, slots: Any, terminated: np.ndarray, truncated: np.ndarray, success: np.ndarray
    ) -> None:
        """Set the flags of slots, each `[len(slots)]`."""
        self.terminated[slots], self.truncated[slots] = terminated, truncated
        self.success[slots] = success

    def clear(self) -> None:
        """Set rewards to 0 and flags to false, and forgets interventions."""
        for array in (self.reward, self.terminated, self.truncated, self.success):
            array[:] = 0
        self.interventions = {}

    def drop(self, slots: list[int]) -> None:
        """Cut off the episodes of slots, without a reward."""
        self.reward[slots] = 0
        self.terminated[slots] = False
        self.success[slots] = False
        self.truncated[slots] = True
