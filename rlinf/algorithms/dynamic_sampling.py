"""Dynamic sampling (DAPO, Yu et al. 2025): draws prompts until enough groups carry a signal.

A group whose responses are all right, or all wrong, says nothing about what to do better. The
sampler decides which groups carry a signal, how many prompts to draw next within a budget, and
which groups are trained on. It is pure bookkeeping: the caller draws, generates and scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import torch

from rlinf.algorithms.groups import Groups

Group = TypeVar("Group")


def carries_signal(
    scores: Sequence[float], turn_rewards: Sequence[Mapping[int, float]] = ()
) -> bool:
    """Return whether the scores of a group differ, or what its episodes were given altogether.

    See `rlinf.algorithms.groups.Groups.unequal`.

    Args:
        scores: How right the responses of a group are, before a penalty for length or other
            shaping: eight wrong answers are wrong alike, although one of them is too long.
        turn_rewards: What turns of each episode were given beside its score, by their numbers;
            empty if none of any episode was.
    """
    own = torch.tensor(list(scores), dtype=torch.float64)
    if len(own) < 2:
        return False
    group = Groups.of_size(len(own), len(own))
    if not turn_rewards:
        return bool(group.unequal(own))
    given = torch.tensor([sum(each.values()) for each in turn_rewards], dtype=torch.float64)
    return bool(group.unequal(own) | group.unequal(own + given))


class DynamicSampler(Generic[Group]):
    """Chooses the groups of one step after another.

    A step is `begin`, then `offer` for the groups of each draw while `wanted` is not 0, then
    `take`. Of more groups than needed, those of the prompts that were drawn first are taken and the
    others dropped. Which ones were complete first has no influence: that would prefer short
    responses, and a run could not be repeated.

    Args:
        target: Groups of a step.
        max_batches: Budget of a step: prompts drawn are at most this times `target`.
        signal: Whether a group carries a signal.
        index: Running number of the prompt of a group.
    """

    def __init__(
        self,
        target: int,
        *,
        max_batches: int = 1,
        signal: Callable[[Group], bool] = lambda group: carries_signal(
            group.scores, group.turn_rewards
        ),
        index: Callable[[Group], int] = lambda group: group.index,
    ) -> None:
        if target < 1 or max_batches < 1:
            raise ValueError(
                f"dynamic sampling got target {target} and max_batches {max_batches}; both must be "
                "at least 1"
            )
        self._target = target
        self._budget = max_batches * target
        self._signal, self._index = signal, index
        self._kept: list[Group] = []
        self._drawn = self._offered = 0

    def begin(self, drawn: int = 0) -> None:
        """Start a step.

        Args:
            drawn: Prompts that were drawn for it already.
        """
        self._kept = []
        self._drawn, self._offered = drawn, 0

    def wanted(self) -> int:
        """Return how many prompts to draw next; 0 when there are enough groups, or no budget.

        The first draw is what is missing. Later ones ask for as many more as were needed per group
        with a signal so far, and for all of the budget where none had one.
        """
        missing = self._target - len(self._kept)
        if missing <= 0 or self._drawn > self._offered:
            return 0
        if self._offered:
            rate = len(self._kept) / self._offered
            missing = math.ceil(missing / rate) if rate else self._target
        count = min(missing, self._budget - self._drawn)
        self._drawn += count
        return count

    def offer(self, groups: Iterable[Group]) -> None:
        """Add groups that were generated and scored, in any order and number."""
        for group in groups:
            self._offered += 1
            if self._signal(group):
                self._kept.append(group)

    @property
    def with_signal(self) -> int:
        """Groups of this step that carry a signal."""
        return len(self._kept)

    def take(self) -> list[Group]:
        """Return the groups to train on, fewer than `target` if the budget did not suffice."""
        return sorted(self._kept, key=self._index)[: self._target]

    def metrics(self) -> dict[str, float]:
        """Return counts of the step."""
        return {
            "groups_drawn": float(self._offered),
            "groups_with_signal": float(len(self._kept)),
            "groups_dropped": float(max(0, len(self._kept) - self._target)),
        }
