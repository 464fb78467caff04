"""Sampling noise that belongs to an env and a step, whoever acts for that env."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_BLOCK = 64


class EnvNoise:
    """Standard normal noise as a function of seed, env and step.

    A generator gives other numbers when the same envs are split over more workers or pipeline
    stages; this does not, so that all splits of a run act alike. The only state is the step, which
    the caller keeps: any step can be asked for, in order being the fast way.
    """

    def __init__(self, seed: int, env_ids: Sequence[int], width: int) -> None:
        """Name the stream.

        Args:
            seed: Seed of the run, at least 0.
            env_ids: Global number of each env in the batch, [B].
            width: Numbers per env and step, C*A.
        """
        self._seed = seed
        self._env_ids = [int(env_id) for env_id in env_ids]
        self._width = width
        self._block_index = -1
        self._block: tuple[Tensor, ...] = ()

    def at(self, step: int) -> Tensor:
        """Return the noise of one step, [B, width] float32.

        Args:
            step: Number of the step since the start of the run, at least 0.
        """
        index, offset = divmod(step, _BLOCK)
        if index != self._block_index:
            drawn = np.stack([self._draw(i, index) for i in self._env_ids], 1)
            self._block = torch.from_numpy(drawn).unbind()
            self._block_index = index
        return self._block[offset]

    def _draw(self, env_id: int, index: int) -> np.ndarray:
        seed = np.random.SeedSequence([self._seed, env_id, index])
        generator = np.random.Generator(np.random.Philox(seed))
        return generator.standard_normal((_BLOCK, self._width), dtype=np.float32)
