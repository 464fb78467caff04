"""Finds numbers that are not finite: one cheap sum when all is well, a search when it is not."""

from __future__ import annotations

import math

import numpy as np


def find_not_finite(
    slots: list[int], reward: np.ndarray, states: np.ndarray | None
) -> list[tuple[int, str]]:
    """Find slots with a NaN or an infinity.

    Args:
        slots: Slots to look at; the others hold finite numbers.
        reward: `[B]`.
        states: `[B, S]`, if the env has them.

    Returns:
        Slot and what is wrong in it.
    """
    if math.isfinite(_total(reward)) and (states is None or math.isfinite(_total(states))):
        return []
    found = []
    for slot in slots:
        if not math.isfinite(reward[slot]):
            found.append((slot, f"reward is {reward[slot]}"))
        elif states is not None and not np.isfinite(states[slot]).all():
            index = int(np.flatnonzero(~np.isfinite(states[slot]))[0])
            value = states[slot, index]
            found.append((slot, f"observation 'states' is {value} at index {index}"))
    return found


def bad_action(actions: np.ndarray) -> tuple[int, str] | None:
    """Find the first slot whose actions `[B, ...]` are not finite, and say which entry."""
    if math.isfinite(_total(actions)) or np.isfinite(actions).all():
        return None
    slot, *rest = np.argwhere(~np.isfinite(actions))[0].tolist()
    value = actions[(slot, *rest)]
    return slot, f"the action that the policy gave is {value} at index {rest}"


def _total(values: np.ndarray) -> float:
    return np.add.reduce(values, axis=None)
