"""Rollouts that were handed over before their end, as long as all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlinf.data.embodied import (
    EnvTrajectory,
    PolicyTrajectory,
    Trajectory,
    merge_trajectories,
)

_EMPTY = {"rewards", "terminations", "truncations", "valid", "intervened", "bootstrap_values"}
"""Zero, or false, in steps that were not made; all else repeats the first step that was."""


def merge_filled(parts: Sequence[Trajectory], steps: int) -> Trajectory:
    """Put trajectories of several envs side by side, each with so many steps.

    Args:
        parts: of T' steps each, at least one, not necessarily as many in all.
        steps: T.
    """
    return merge_trajectories([fill_front(part, steps) for part in parts])


def fill_front(trajectory: Trajectory, steps: int) -> Trajectory:
    """Return a trajectory of so many steps; those that are missing stand first and do not count.

    What follows the last step stays what it was, so that returns and advantages of the steps that
    were made are those of the shorter trajectory: they look ahead only.

    Args:
        trajectory: of T' steps.
        steps: T, no fewer.
    """
    lacking = steps - _length(trajectory)
    if lacking == 0:
        return trajectory
    filled = {
        name: _fill(value, lacking, empty=name in _EMPTY)
        for name, value in vars(trajectory).items()
        if name != "final"
    }
    if isinstance(trajectory, EnvTrajectory):
        # Who looks at the first step alone is told whether an episode begins there.
        filled["begins"][1 : lacking + 1] = False
        filled["begins"][lacking] = trajectory.begins[0]
        return EnvTrajectory(**filled)
    filled["finite"][:lacking] = True
    final = trajectory.final
    if final is not None:
        final = replace(final, steps=final.steps + lacking)
    return PolicyTrajectory(**filled, final=final)


def _length(trajectory: EnvTrajectory | PolicyTrajectory) -> int:
    if isinstance(trajectory, EnvTrajectory):
        return len(trajectory.rewards)
    return len(trajectory.prev_logprobs)


def _fill(value: Any, lacking: int, *, empty: bool) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _fill(item, lacking, empty=empty) for key, item in value.items()}
    first: Tensor = value[:1].expand(lacking, *value.shape[1:])
    return torch.cat([torch.zeros_like(first) if empty else first, value])
