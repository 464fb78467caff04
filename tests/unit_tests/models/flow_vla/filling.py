"""Weights that two programs can make without a file: each tensor is drawn by its name."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch


def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor of a name, float32, sized so that signals keep their scale."""
    numbers = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) > 1:
        numbers = numbers / math.sqrt(math.prod(shape[1:]))
    elif name.endswith("weight"):
        numbers = 0.5 + 0.1 * numbers
    else:
        numbers = 0.1 * numbers
    return torch.tensor(numbers, dtype=torch.float32)


def drawn_robots(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the same for GR00T; layers of several robots are sized as if there were one."""
    if name.endswith((".W", ".b")):
        return math.sqrt(shape[-1]) * drawn(name, shape)
    return drawn(name, shape)
