"""Inputs of what is observed when the actions of a plan begin, among those that it was made from.

A plan that is made ahead of time is judged by the value of the state in which its own actions
begin: there its rewards begin to count, there episodes are cut off, and there rollouts end.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

_PREFIX = "now."


def named_current(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return inputs under names that keep them apart from those of the plan."""
    return {_PREFIX + name: value for name, value in inputs.items()}


def current_inputs(forward_inputs: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return what `named_current` has named; None if values are those of the plan's own inputs."""
    current = {
        name.removeprefix(_PREFIX): value
        for name, value in forward_inputs.items()
        if name.startswith(_PREFIX)
    }
    return current or None
