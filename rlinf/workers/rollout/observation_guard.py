"""Keeps observations that are not finite away from the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.utils.not_finite import first_not_finite, is_finite


class ObservationGuard:
    """Looks for NaN and infinity in observations as they arrive.

    Args:
        on_nan: `stop` raises; `skip` lets the policy see zeros instead and says in which rows.
        warn: tells the user something.
    """

    def __init__(self, on_nan: str, warn: Callable[[str], None]) -> None:
        self._on_nan = on_nan
        self._warn = warn

    def check(
        self, obs: dict[str, Any], step: int, env_ids: Sequence[int]
    ) -> tuple[dict[str, Any], Tensor | None]:
        """Check a batch of observations.

        Args:
            obs: tensors, `[B, ...]` each, and texts, which are not looked at.
            step: chunk step of the rollout, for the message.
            env_ids: number of each env in the whole run, for the message.

        Returns:
            The observations, all of them finite, and bool `[B]`, the rows that were not; None if
            all were.

        Raises:
            FloatingPointError: one is not finite, and `on_nan` is `stop`.
        """
        bad = None
        for key, value in obs.items():
            if not isinstance(value, Tensor) or is_finite(value):
                continue
            (row, *place), number = first_not_finite(value)
            message = (
                f"the observation '{key}' of env {env_ids[row]} is {number} at index {place} in "
                f"step {step} of the rollout"
            )
            if self._on_nan == "stop":
                raise FloatingPointError(
                    f"{message}; look at the env, or leave such rollouts out with "
                    "runner.on_nan: skip"
                )
            self._warn(f"{message}; what this env does in this rollout is left out")
            finite = torch.isfinite(value)
            rows = ~finite.flatten(1).all(1)
            bad = rows if bad is None else bad | rows
            obs = {**obs, key: torch.where(finite, value, 0.0)}
        return obs, bad
