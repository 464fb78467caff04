"""Checks an environment against the contract of `VectorEnv` and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlinf.envs.base import VectorEnv
from rlinf.envs.contract import CHECKS
from rlinf.envs.probe import Check, Probe, Violation


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


def check_env(
    env_cls: Callable[..., VectorEnv],
    cfg: dict[str, Any],
    steps: int = 200,
    num_envs: int = 4,
) -> Iterator[Finding]:
    """Check an env, one thing after the other.

    Args:
        env_cls: Class as `get_env_cls` returns it.
        cfg: Its config, as in `env.train`.
        steps: Steps of the random agent at the end.
        num_envs: Slots to make.

    Yields:
        A finding per check. If the env cannot even be made, nothing else is checked.
    """
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
