"""How an episode begins, and numbers that a seed gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Start(NamedTuple):
    """How an episode begins.

    Attributes:
        reset_id: Reset state, from 0. When the env has no list of them and only the seed counts:
            -1, or if there are several tasks the number of the task.
        seed: Seed of the episode, below 2**32; a function of `reset_id` where there is one.
    """

    reset_id: int
    seed: int


NEVER = Start(-1, -1)
"""Stands for a slot that has not begun an episode."""


def derive(seed: int, *key: int) -> tuple[int, int]:
    """Return a number below 2**64 and a seed below 2**32, always the same for a seed and a key."""
    words = np.random.SeedSequence(seed, spawn_key=key).generate_state(3)
    return int(words[0]) << 32 | int(words[1]), int(words[2])
