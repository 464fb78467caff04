"""Numbers that look random and follow from what they are made of, whatever machine or version."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Return splitmix64 of each number: a bijection of 64 bits that scatters them.

    Args:
        numbers: uint64, any shape.
    """
    with np.errstate(over="ignore"):
        x = numbers + _STEP
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def seed_of(*parts: Any) -> int:
    """Return a seed below 2**32 of some plain values, the same in every process."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of an epoch: int64 `[count]`, a function of its arguments alone."""
    start = np.uint64(seed_of("order", seed, epoch)) << np.uint64(32)
    return np.argsort(mixed(start + np.arange(count, dtype=np.uint64)), kind="stable")
