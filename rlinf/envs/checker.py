"""Checks an environment against the contract of `VectorEnv` and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.envs.base import VectorEnv


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: What was looked at.
        status: `ok`, `warn` (works, may surprise) or `fail` (breaks training).
        found: What was found.
        fix: What to do about it; empty if nothing is to be done.
    """

    name: str
    status: str
    found: str
    fix: str = ""


class Violation(Exception):
    """A check found that the contract is broken; `fix` says what to do."""

    def __init__(self, found: str, fix: str = "") -> None:
        """Keeps both texts."""
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
        """Keeps what is needed to make the env.

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
        """Makes an env with some keys changed, and closes it."""
        env = self._env_cls({**self._cfg, **changes}, num_envs or self.num_envs, 0, 1, None)
        try:
            yield env
        finally:
            env.close()

    def actions(self, env: VectorEnv, *shape: int, seed: int = 0) -> np.ndarray:
        """Draws actions `[B, *shape, A]`, always the same for a seed."""
        return env.action_spec.sample(np.random.default_rng(seed), env.num_envs, *shape)


Check = Callable[[Probe], str]
"""Returns what it found; raises `Violation` if the contract is broken."""


def check_env(
    env_cls: Callable[..., VectorEnv],
    cfg: dict[str, Any],
    steps: int = 200,
    num_envs: int = 4,
) -> Iterator[Finding]:
    """Checks an env, one thing after the other.

    Args:
        env_cls: Class as `get_env_cls` returns it.
        cfg: Its config, as in `env.train`.
        steps: Steps of the random agent at the end.
        num_envs: Slots to make.

    Yields:
        A finding per check. If the env cannot even be made, nothing else is checked.
    """
    from rlinf.envs.contract import CHECKS

    probe = Probe(env_cls, cfg, num_envs + num_envs % 2, steps)
    for name, check in CHECKS.items():
        finding = _run(name, check, probe)
        yield finding
        if name == next(iter(CHECKS)) and finding.status == "fail":
            return


def _run(name: str, check: Check, probe: Probe) -> Finding:
    try:
        found = check(probe)
    except Violation as violation:
        return Finding(name, "fail", str(violation), violation.fix)
    except Exception as error:
        return Finding(name, "fail", f"{type(error).__name__}: {error}")
    status = "warn" if found.startswith("?") else "ok"
    return Finding(name, status, found.removeprefix("?").strip())
