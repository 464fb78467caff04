"""Running totals of the episodes in all slots, and the metrics of those that ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

METRICS = ("success_once", "success_at_end", "return", "episode_len", "reward")
"""What is reported of an episode; `reward` is the return per step."""


class EpisodeTotals:
    """Totals of the current episode of every slot.

    Attributes:
        length: Steps made, `[B]`.
        returns: Sum of emitted rewards, `[B]`.
        success_once: Success at any step so far, `[B]`.
        success_now: Success at the last step, `[B]`.
        last_reward: Reward of the last step before differencing, `[B]`.
    """

    _FIELDS = ("length", "returns", "success_once", "success_now", "last_reward")

    def __init__(self, num_envs: int) -> None:
        """Start with empty episodes."""
        self.length = np.zeros(num_envs, dtype=np.int64)
        self.returns = np.zeros(num_envs, dtype=np.float64)
        self.success_once = np.zeros(num_envs, dtype=bool)
        self.success_now = np.zeros(num_envs, dtype=bool)
        self.last_reward = np.zeros(num_envs, dtype=np.float64)

    def begin(self, slots: list[int]) -> None:
        """Forget the episodes of some slots."""
        for field in self._FIELDS:
            getattr(self, field)[slots] = 0

    def add(self, live: np.ndarray, reward: np.ndarray, success: np.ndarray) -> None:
        """Count one step.

        Args:
            live: Slots that made it, bool `[B]`.
            reward: `[B]`, 0 elsewhere.
            success: bool `[B]`, false elsewhere.
        """
        self.length += live
        self.returns += reward
        np.copyto(self.success_now, success, where=live)
        self.success_once |= success

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return `METRICS` of the current episodes, each float32 `[B]`."""
        length = self.length
        values = (
            self.success_once,
            self.success_now,
            self.returns,
            length,
            self.returns / np.maximum(length, 1),
        )
        return {
            name: torch.from_numpy(value.astype(np.float32))
            for name, value in zip(METRICS, values, strict=True)
        }

    def get_state(self) -> dict[str, Any]:
        """Return copies of the totals."""
        return {field: getattr(self, field).copy() for field in self._FIELDS}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from totals that `get_state` returned."""
        for field in self._FIELDS:
            getattr(self, field)[:] = state[field]
