"""Sums of rewards over several rows, and stretches of rows, by following the links of an index.

A row k is a chunk whose actions c = 0 .. m_k - 1 were carried out. Discounted per step:

    R_k = sum_c gamma^c r_kc,    g_k = gamma^m_k

and per chunk: R_k = sum_c r_kc, g_k = gamma. Over the rows k, k+1, .., k+j-1 with j <= n:

    R = R_k + g_k R_(k+1) + g_k g_(k+1) R_(k+2) + ..,    g = g_k g_(k+1) .. g_(k+j-1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rlinf.data.replay.index import EpisodeIndex
from rlinf.data.replay.table import Table


@dataclass(frozen=True)
class Discount:
    """How rewards are discounted.

    Attributes:
        gamma: the factor.
        per: what it counts: steps of the env, or chunks of actions.
    """

    gamma: float = 0.99
    per: Literal["step", "chunk"] = "step"

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1 or self.per not in ("step", "chunk"):
            raise ValueError(
                f"gamma is {self.gamma} per {self.per!r}; it is from 0 to 1, per 'step' or 'chunk'"
            )

    def chunk(self, rewards: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return R and g of rows.

        Args:
            rewards: `[n, C]`.
            valid: bool `[n, C]`.
        """
        counted = np.where(valid, rewards, 0).astype(np.float64)
        if self.per == "chunk":
            return counted.sum(1), np.full(len(rewards), self.gamma)
        # An action that was not carried out takes no time.
        exponents = np.maximum(valid.cumsum(1) - 1, 0)
        return (counted * self.gamma**exponents).sum(1), self.gamma ** valid.sum(1)


class Sums(NamedTuple):
    """Sums over rows.

    Attributes:
        rewards: R, float64 `[n]`.
        discounts: g, float64 `[n]`.
        last: serial of the last row of each, int64 `[n]`.
        steps: rows of each, int64 `[n]`.
    """

    rewards: np.ndarray
    discounts: np.ndarray
    last: np.ndarray
    steps: np.ndarray


def sum_rewards(
    facts: Table, index: EpisodeIndex, serials: np.ndarray, steps: int, discount: Discount
) -> Sums:
    """Sum rewards from drawable rows on, until the episode ends or the next row is not drawable.

    Args:
        facts: rewards and masks.
        index: links.
        serials: rows to begin from, int64 `[n]`.
        steps: most rows of a sum.
        discount: how rewards are discounted.
    """
    total, factor = np.zeros(len(serials)), np.ones(len(serials))
    last, counts = serials.copy(), np.zeros(len(serials), np.int64)
    going, rows = np.arange(len(serials)), serials
    while len(going):
        rewards, factors = discount.chunk(
            facts.gather("rewards", rows), facts.gather("valid", rows)
        )
        total[going] += factor[going] * rewards
        factor[going] *= factors
        last[going] = rows
        counts[going] += 1
        steps -= 1
        if not steps:
            break
        rows, on = follow(index, rows)
        going, rows = going[on], rows[on]
    return Sums(total, factor, last, counts)


class Stretch(NamedTuple):
    """Consecutive rows of episodes.

    Attributes:
        serials: int64 `[n, L]`; where an episode is shorter, its last row again.
        mask: which are rows, bool `[n, L]`.
    """

    serials: np.ndarray
    mask: np.ndarray


def stretch(index: EpisodeIndex, serials: np.ndarray, length: int) -> Stretch:
    """Return the rows from drawable ones on, as far as the next row is drawable."""
    rows = np.repeat(serials[:, None], length, 1)
    mask = np.zeros(rows.shape, bool)
    mask[:, 0] = True
    for k in range(1, length):
        after, on = follow(index, rows[:, k - 1])
        mask[:, k] = mask[:, k - 1] & on
        rows[:, k] = np.where(mask[:, k], after, rows[:, k - 1])
    return Stretch(rows, mask)


def follow(index: EpisodeIndex, serials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row after each, and whether there is one that can be drawn."""
    after = index.next(serials)
    return after, (after >= 0) & index.drawable(np.maximum(after, 0))
