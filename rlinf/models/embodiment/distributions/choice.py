"""Which distribution fits the actions of an env."""

from __future__ import annotations

import math
from collections.abc import Sequence

AUTO = "auto"
DISTRIBUTIONS = (
    "gaussian",
    "squashed_gaussian",
    "deterministic",
    "categorical",
    "multi_categorical",
)
_OF_FINITE_RANGES = ("squashed_gaussian", "deterministic")
"""Names that a user may give, besides `auto`."""


class UnfitDistribution(ValueError):
    """A distribution that does not fit the actions of the env.

    Attributes:
        reason: Why not, in words.
        hint: What to set instead, in words.
    """

    def __init__(self, name: str, reason: str, hint: str) -> None:
        """Keep reason and hint."""
        super().__init__(f"model.distribution is {name}, but {reason}: {hint}")
        self.name, self.reason, self.hint = name, reason, hint

    def __reduce__(self) -> tuple:
        """Keep the parts when the error is sent to another process."""
        return type(self), (self.name, self.reason, self.hint)


def choose_distribution(
    name: str,
    choices: Sequence[int] | None,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
) -> str:
    """Return the distribution to use for the actions of an env.

    Args:
        name: One of `DISTRIBUTIONS`, or `auto`: categorical for a choice, multi_categorical for
            several at a time, gaussian for real numbers.
        choices: Number of choices for each number of an action; None if they are real numbers.
        low: Smallest action, `[A]`; None is unknown.
        high: Largest action, `[A]`; None is unknown.

    Returns:
        One of `DISTRIBUTIONS`.

    Raises:
        UnfitDistribution: The distribution does not fit the actions.
    """
    if choices is None:
        fitting = ["gaussian", "squashed_gaussian", "deterministic"]
        takes = "real numbers"
    elif len(choices) == 1:
        fitting = ["categorical", "multi_categorical"]
        takes = f"a choice out of {choices[0]}"
    else:
        fitting = ["multi_categorical"]
        takes = f"{len(choices)} choices at a time, out of {', '.join(map(str, choices))}"
    if name == AUTO:
        return fitting[0]
    if name not in fitting:
        hint = f"set it to {AUTO} or {' or '.join(fitting)}"
        raise UnfitDistribution(name, f"the env takes {takes}", hint)
    if name in _OF_FINITE_RANGES and not _finite(low, high):
        reason = f"the bounds of the actions are not finite; the env says {low} to {high}"
        raise UnfitDistribution(name, reason, "set it to gaussian")
    return name


def _finite(low: Sequence[float] | None, high: Sequence[float] | None) -> bool:
    return low is not None and high is not None and all(map(math.isfinite, [*low, *high]))
