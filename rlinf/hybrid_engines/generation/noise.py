"""Uniform numbers that depend on a key and a counter alone, on any device and in any batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""

_MASK = (1 << 64) - 1
BITS = 48
"""Bits of a number: few enough that number * total < total after rounding to 53 bits."""


def sample_key(seed: int, sample_index: int) -> int:
    """Key of one sample of a request, as a signed 64-bit number."""
    return _signed(_mix(_mix(seed & _MASK) ^ _mix(~sample_index & _MASK)))


def sample_keys(seeds: Sequence[int], sample_indices: Sequence[int]) -> np.ndarray:
    """Return the keys of several samples, `[n]` int64."""
    mixed = np.array([seed & _MASK for seed in seeds], np.uint64)
    indices = ~np.array(sample_indices, np.uint64)
    return _mix(_mix(mixed) ^ _mix(indices)).view(np.int64)


def uniform(keys: Tensor, counters: Tensor) -> Tensor:
    """Return the numbers in [0, 1), multiples of 2^-48.

    Args:
        keys: `[B]` int64, from `sample_key`.
        counters: `[B]` int64, the position of the token in its response.

    Returns:
        `[B]` float64.
    """
    # Signed products wrap as unsigned ones do; shifts fill with the sign, which is masked away.
    x = keys + counters * _signed(GOLDEN)
    x = (x ^ _shift(x, 30)) * _signed(FIRST)
    x = (x ^ _shift(x, 27)) * _signed(SECOND)
    x = x ^ _shift(x, 31)
    return _shift(x, 64 - BITS).to(torch.float64) * 2.0**-BITS


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: int | np.ndarray) -> int | np.ndarray:
    x = ((x ^ (x >> 30)) * FIRST) & _MASK
    x = ((x ^ (x >> 27)) * SECOND) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
