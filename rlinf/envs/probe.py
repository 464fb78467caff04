"""What checks of an environment work with: an env under test, and how they tell what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlinf.envs.base import VectorEnv


class Violation(Exception):
    """A check found that the contract is broken; `fix` says what to do."""

    def __init__(self, found: str, fix: str = "") -> None:
        """Keep both texts."""
        super().__init__(found)
        self.fix = fix


class Probe:
    """Makes the env under test, again and again, with other settings.

    Attributes:
        num_envs: Slots of each.
        steps: Steps of the random agent.
        limit: Step limit for checks that need episodes to end.
    """

    def __init__(
        self, env_cls: Callable[..., VectorEnv], cfg: dict[str, Any], num_envs: int, steps: int
    ) -> None:
        """Keep what is needed to make the env.

        Args:
            env_cls: The class.
            cfg: As `env.train`.
            num_envs: Slots; even, so that there can be groups of two.
            steps: Steps of the random agent.
        """
        self._env_cls, self._cfg = env_cls, {"seed": 7, **cfg}
        self.num_envs, self.steps, self.limit = num_envs, steps, 6
        self.episode_limit: int | None = None

    @contextmanager
    def env(self, num_envs: int | None = None, **changes: Any) -> Iterator[VectorEnv]:
        """Make an env with some keys changed, and closes it."""
        env = self._env_cls({**self._cfg, **changes}, num_envs or self.num_envs, 0, 1, None)
        try:
            yield env
        finally:
            env.close()

    def actions(self, env: VectorEnv, *shape: int, seed: int = 0) -> np.ndarray:
        """Draw actions `[B, *shape, A]`, always the same for a seed."""
        return env.action_spec.sample(np.random.default_rng(seed), env.num_envs, *shape)


Check = Callable[[Probe], str]
"""Returns what it found; raise `Violation` if the contract is broken."""
