"""Dynamic sampling (DAPO, Yu et al. 2025): draws prompts until enough groups carry a signal.

A group whose rewards are equal has no advantage and no gradient. The sampler decides which groups
carry a signal, how many prompts to draw next within a budget, and what is left for the next step.
It is pure bookkeeping: the caller draws, generates and scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import torch

from rlinf.algorithms.masks import groups_unequal

Group = TypeVar("Group")


def carries_signal(rewards: Sequence[float]) -> bool:
    """Returns whether the rewards of a group differ; see `rlinf.algorithms.masks.groups_unequal`.

    Args:
        rewards: Those of all members of a group.
    """
    scores = torch.tensor(list(rewards), dtype=torch.float64)
    return len(scores) > 1 and bool(groups_unequal(scores, len(scores)))


def rewards_of(group: object) -> list[float]:
    """Returns the rewards of a `SampleGroup`."""
    return [sample.reward for sample in group.samples]


def oldest_version(group: object) -> int:
    """Returns the version of the oldest weights that wrote into a `SampleGroup`."""
    return min(min(sample.versions, default=0) for sample in group.samples)


class DynamicSampler(Generic[Group]):
    """Collects the groups of one step after another.

    A step is `begin`, then `offer` for the groups of each draw while `wanted` is not 0, then
    `take`. More groups than needed are kept for the next step, where they are taken first, unless
    they have become older than `max_age`. With 0 nothing is carried over: training is on-policy.

    Args:
        target: Groups of a step.
        max_batches: Budget of a step: prompts drawn are at most this times `target`.
        max_age: Most updates by which the weights may be newer than a group.
        rewards: Rewards of a group that decide whether it carries a signal.
        version: Version of the oldest weights of a group.

    Attributes:
        carried: Groups for the next step, oldest first.
    """

    def __init__(
        self,
        target: int,
        *,
        max_batches: int = 1,
        max_age: int = 0,
        rewards: Callable[[Group], Sequence[float]] = rewards_of,
        version: Callable[[Group], int] = oldest_version,
    ) -> None:
        if target < 1 or max_batches < 1 or max_age < 0:
            raise ValueError(
                f"dynamic sampling got target {target}, max_batches {max_batches} and max_age "
                f"{max_age}; the first two must be at least 1, the last at least 0"
            )
        self.carried: list[Group] = []
        self._target = target
        self._budget = max_batches * target
        self._max_age = max_age
        self._rewards, self._version_of = rewards, version
        self._kept: list[Group] = []
        self._drawn = self._offered = self._with_signal = self._expired = 0

    def begin(self, version: int, drawn: int = 0) -> list[Group]:
        """Starts a step.

        Args:
            version: Of the weights that generate in this step.
            drawn: Prompts that were drawn for it already.

        Returns:
            Groups of earlier steps that count for this one.
        """
        fresh = [g for g in self.carried if version - self._version_of(g) <= self._max_age]
        self._expired = len(self.carried) - len(fresh)
        self._kept, self.carried = fresh, []
        self._drawn, self._offered, self._with_signal = drawn, 0, 0
        return list(fresh)

    def wanted(self) -> int:
        """Returns how many prompts to draw next; 0 when there are enough groups, or no budget.

        The first draw is what is missing. Later ones ask for as many more as were needed per group
        with a signal so far, and for all of the budget where none had one.
        """
        missing = self._target - len(self._kept)
        if missing <= 0 or self._drawn > self._offered:
            return 0
        if self._offered:
            rate = self._with_signal / self._offered
            missing = math.ceil(missing / rate) if rate else self._target
        count = min(missing, self._budget - self._drawn)
        self._drawn += count
        return count

    def offer(self, groups: Iterable[Group]) -> None:
        """Adds groups that were generated and scored, in any order and number."""
        for group in groups:
            self._offered += 1
            if carries_signal(self._rewards(group)):
                self._with_signal += 1
                self._kept.append(group)

    def take(self) -> list[Group]:
        """Ends the step; returns its groups, fewer than `target` if the budget did not suffice."""
        taken, self.carried = self._kept[: self._target], self._kept[self._target :]
        self._kept = []
        return taken

    def metrics(self) -> dict[str, float]:
        """Returns counts of the step that was taken last."""
        return {
            "groups_drawn": float(self._offered),
            "groups_with_signal": float(self._with_signal),
            "groups_carried": float(len(self.carried)),
            "groups_expired": float(self._expired),
        }
