"""Noise on the actions of an expert; it depends on the episode and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf.envs.action_utils import ActionSpec


class ActionNoise:
    """Makes actions worse, and brings them into the range of the env.

    Real numbers become `clip(a + level * half_range * n)` with standard normal `n`; an infinite
    range counts as that from -1 to 1. Of choices, each is drawn anew with probability `level`.

    Args:
        spec: The actions that the env takes.
        levels: Of one episode after the other, again and again.
        seed: Of the draws.
    """

    def __init__(self, spec: ActionSpec, levels: Sequence[float], seed: int) -> None:
        self._spec, self._levels, self._seed = spec, list(levels), seed
        bounded = np.isfinite(spec.low) & np.isfinite(spec.high)
        self._scale = np.where(bounded, (spec.high - spec.low) / 2, 1.0)
        self._generators: dict[int, tuple[float, np.random.Generator]] = {}

    def level(self, episode: int) -> float:
        """Return how much noise an episode has."""
        return self._levels[episode % len(self._levels)]

    def begin(self, slot: int, episode: int) -> None:
        """Take note that an episode begins in a slot."""
        generator = np.random.default_rng([self._seed, 1, episode])
        self._generators[slot] = self.level(episode), generator

    def apply(self, slot: int, action: np.ndarray) -> np.ndarray:
        """Return the action to execute, `[A]` of the env's type.

        Args:
            slot: Where.
            action: What was chosen, `[A]`; may be outside of the range.
        """
        spec = self._spec
        level, generator = self._generators[slot]
        if spec.choices is not None:
            chosen = np.clip(np.rint(action), spec.low, spec.high).astype(spec.dtype)
            if level:
                drawn = spec.sample(generator)
                chosen = np.where(generator.random(spec.dim) < level, drawn, chosen)
            return chosen
        action = np.asarray(action, np.float32)
        if level:
            action = action + level * self._scale * generator.standard_normal(spec.dim)
        return np.clip(action, spec.low, spec.high).astype(spec.dtype)
