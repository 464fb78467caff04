"""Draws rows: uniformly, or in proportion to priorities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf.data.replay.index import EpisodeIndex

_TRIALS = 16
"""Draws that may meet rows that cannot be drawn, before those that can are listed."""


def draw_uniform(
    random: np.random.Generator, index: EpisodeIndex, begin: int, end: int, count: int
) -> np.ndarray:
    """Return serials of drawable rows, each as likely as the other, with replacement.

    Args:
        random: where chance comes from.
        index: which rows can be drawn.
        begin: first row that may be drawn.
        end: row after the last; at least one between them is drawable.
        count: how many.
    """
    drawn = random.integers(begin, end, count)
    for _ in range(_TRIALS):
        again = np.flatnonzero(~index.drawable(drawn))
        if not len(again):
            return drawn
        drawn[again] = random.integers(begin, end, len(again))
    again = np.flatnonzero(~index.drawable(drawn))
    rows = np.arange(begin, end)
    rows = rows[index.drawable(rows)]
    drawn[again] = rows[random.integers(0, len(rows), len(again))]
    return drawn


@dataclass(frozen=True)
class Priorities:
    """Prioritised replay (Schaul et al., 2016): P(i) = p_i^alpha / sum_j p_j^alpha.

    Attributes:
        alpha: how much priorities count; 0 is uniform.
        beta: how much of the bias the weights (N P(i))^-beta take away; 1 is all.
        epsilon: added to each priority, so that no row is out of reach.
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.alpha < 0 or not 0 <= self.beta <= 1 or self.epsilon <= 0:
            raise ValueError(
                f"priorities with alpha {self.alpha}, beta {self.beta} and epsilon {self.epsilon}; "
                "alpha is 0 or more, beta from 0 to 1, epsilon above 0"
            )


class SumTree:
    """Sums over powers of two of leaves, so that a leaf is found by its share of the total.

    Every node is the sum of its two children, added when a child changes. So the tree follows from
    its leaves exactly, in whatever order they were set.

    Args:
        leaves: how many.
    """

    def __init__(self, leaves: int) -> None:
        self._first = 1 << max(0, leaves - 1).bit_length()
        self._sums = np.zeros(2 * self._first)
        self._least = np.full(2 * self._first, np.inf)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._sums[1])

    @property
    def least(self) -> float:
        """Smallest leaf above 0."""
        return float(self._least[1])

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Return the values of leaves."""
        return self._sums[self._first + leaves]

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Set leaves; of one that is named twice the last value counts."""
        if not len(leaves):
            return
        nodes = self._first + leaves
        self._sums[nodes] = values
        self._least[nodes] = np.where(self._sums[nodes] > 0, self._sums[nodes], np.inf)
        nodes = np.unique(nodes)
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            left, right = 2 * nodes, 2 * nodes + 1
            self._sums[nodes] = self._sums[left] + self._sums[right]
            self._least[nodes] = np.minimum(self._least[left], self._least[right])

    def before(self, leaf: int) -> float:
        """Return the sum of the leaves before one."""
        node, total = self._first + leaf, 0.0
        if leaf >= self._first:
            return self.total
        while node > 1:
            if node & 1:
                total += self._sums[node - 1]
            node >>= 1
        return float(total)

    def find(self, sums: np.ndarray) -> np.ndarray:
        """Return the leaves at which running sums pass these; never a leaf of 0."""
        nodes = np.ones(len(sums), np.int64)
        sums = sums.copy()
        while nodes[0] < self._first:
            left = self._sums[2 * nodes]
            # Rounding may leave a rest where nothing is to the right.
            right = (sums >= left) & (self._sums[2 * nodes + 1] > 0)
            sums -= np.where(right, left, 0)
            nodes = 2 * nodes + right
        return nodes - self._first


class PrioritySampler:
    """Draws rows in proportion to their priorities.

    Args:
        settings: exponents.
        capacity: most rows; a row has the leaf `serial % capacity`.

    Attributes:
        greatest: greatest priority so far, which new rows get.
    """

    def __init__(self, settings: Priorities, capacity: int) -> None:
        self.settings = settings
        self._capacity = capacity
        self._tree = SumTree(capacity)
        self.greatest = 1.0

    def admit(self, serials: np.ndarray) -> None:
        """Let rows be drawn, at the greatest priority."""
        self._tree.set(serials % self._capacity, self.greatest**self.settings.alpha)

    def remove(self, serials: np.ndarray) -> None:
        """Let rows be drawn no more."""
        self._tree.set(serials % self._capacity, 0.0)

    def update(self, serials: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of rows that can be drawn."""
        priorities = priorities + self.settings.epsilon
        self.greatest = max(self.greatest, float(priorities.max(initial=0.0)))
        self._tree.set(serials % self._capacity, priorities**self.settings.alpha)

    def draw(
        self, random: np.random.Generator, begin: int, end: int, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows, one from each of `count` equal shares of the total.

        Args:
            random: where chance comes from.
            begin: first row that may be drawn.
            end: row after the last.
            count: how many.

        Returns:
            Serials, and weights in (0, 1]: (N P(i))^-beta over that of the least likely row.
        """
        capacity, tree = self._capacity, self._tree
        first, stop = begin % capacity, end % capacity
        start, mass = tree.before(first), tree.total
        if end - begin < capacity:
            # Leaves lie in a ring: what is asked for may go over its end.
            mass = tree.before(stop) - start + (tree.total if stop <= first else 0)
        sums = start + (np.arange(count) + random.random(count)) * (mass / count)
        leaves = tree.find(np.where(sums >= tree.total, sums - tree.total, sums))
        serials = begin + (leaves - first) % capacity
        outside = serials >= end
        if outside.any():
            # A share ended a rounding error too late.
            rows = np.arange(begin, end)
            serials[outside] = rows[tree.get(rows % capacity) > 0][-1]
        return serials, self.weights(serials)

    def weights(self, serials: np.ndarray) -> np.ndarray:
        """Return (N P(i))^-beta of rows over that of the least likely row, float32."""
        shares = self.leaves(serials) / self._tree.least
        return (shares**-self.settings.beta).astype(np.float32)

    def leaves(self, serials: np.ndarray) -> np.ndarray:
        """Return the leaves of rows, to be saved."""
        return self._tree.get(serials % self._capacity)

    def restore(self, serials: np.ndarray, leaves: np.ndarray, greatest: float) -> None:
        """Set what was saved."""
        self._tree.set(serials % self._capacity, leaves)
        self.greatest = greatest
