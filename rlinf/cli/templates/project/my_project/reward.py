"""What a step is worth: a pure function, so that it can be tested without the env."""

from __future__ import annotations

ARRIVAL = 5.0
"""Reward for reaching the goal, once per episode."""


def reward(before: float, after: float, effort: float, solved: bool, effort_cost: float) -> float:
    """Reward progress, charge for effort, and pay for arriving.

    Args:
        before: Distance to the goal before the step.
        after: Distance to the goal after it.
        effort: Squared length of the action.
        solved: Whether the goal has been reached.
        effort_cost: What a unit of effort costs.
    """
    return 10.0 * (before - after) - effort_cost * effort + ARRIVAL * solved
