"""Episodes that are compared with one another: which belong together, and what a group says."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Groups:
    """B episodes, or sequences, in G groups of any size.

    Args:
        ids: Int64 `[B]`; episodes with equal numbers are one group. Groups are ordered by number.

    Attributes:
        labels: The number that each group was given by, int64 `[G]`.
        ids: Number of each episode's group, 0 to G - 1, int64 `[B]`.
        sizes: Members of each group, int64 `[G]`.
    """

    def __init__(self, ids: Tensor) -> None:
        self.labels, self.ids, self.sizes = torch.unique(
            ids, return_inverse=True, return_counts=True
        )
        widest = int(self.sizes.max()) if len(self.sizes) else 1
        self._there = torch.arange(widest, device=ids.device) < self.sizes.unsqueeze(1)
        self._places = torch.zeros_like(self._there, dtype=torch.int64)
        self._places[self._there] = self.ids.argsort(stable=True)

    @classmethod
    def of_size(cls, count: int, size: int, device: torch.device | None = None) -> Groups:
        """Make groups of neighbours, all of one size.

        Args:
            count: B.
            size: Members of a group.
            device: Of the tensors that are grouped.

        Raises:
            ValueError: B is no multiple of the size.
        """
        if size < 1 or count % size:
            raise ValueError(f"{count} episodes do not divide into groups of group_size {size}")
        return cls(torch.arange(count, device=device) // size)

    def members(self, groups: Iterable[int]) -> Tensor:
        """Return the places of the members of some groups, one group after the other, int64."""
        parts = self._places[self._there].split(self.sizes.tolist())
        return torch.cat([self.ids.new_empty(0), *(parts[group] for group in groups)])

    def mean(self, scores: Tensor) -> Tensor:
        """Return the mean score of each group, `[G]`, of scores `[B]`."""
        return self._sum(scores) / self.sizes

    def std(self, scores: Tensor) -> Tensor:
        """Return the unbiased deviation of each group's scores, `[G]`; 0 for a single member."""
        squares = (scores - self.to_members(self.mean(scores))).square()
        return (self._sum(squares) / (self.sizes - 1).clamp(min=1)).sqrt()

    def unequal(self, scores: Tensor) -> Tensor:
        """Mark the groups whose members have different scores, bool `[G]`.

        Only these say what is better. Rounding makes equal scores differ in their last digit; such
        a difference is none.
        """
        table = scores[self._places]
        low, high = (table.masked_fill(~self._there, fill) for fill in (torch.inf, -torch.inf))
        size = table.abs().masked_fill(~self._there, 0.0).amax(1)
        return high.amax(1) - low.amin(1) > 1e-6 * size

    def all(self, flags: Tensor) -> Tensor:
        """Mark the groups all of whose members are marked, bool `[G]`, by flags `[B]`."""
        return (flags[self._places] | ~self._there).all(1)

    def within(self, scores: Tensor, lower: float | None, upper: float | None) -> Tensor:
        """Mark the members of groups whose mean score lies in `[lower, upper]`, bool `[B]`.

        Args:
            scores: `[B]`.
            lower: Least mean that is kept; None is no bound.
            upper: Greatest mean that is kept; None is no bound.
        """
        means = self.mean(scores)
        keep = torch.ones_like(means, dtype=torch.bool)
        if lower is not None:
            keep &= means >= lower
        if upper is not None:
            keep &= means <= upper
        return self.to_members(keep)

    def to_members(self, of_groups: Tensor) -> Tensor:
        """Give each member what belongs to its group: `[G]` becomes `[B]`."""
        return of_groups[self.ids]

    def _sum(self, scores: Tensor) -> Tensor:
        return torch.where(self._there, scores[self._places], 0.0).sum(1)
