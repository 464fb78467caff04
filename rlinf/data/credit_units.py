"""The parts of episodes that are compared with one another and get one advantage each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.data.token_batch import TokenBatch, pad_ragged, valid_entries
from rlinf.data.trajectories import Trajectories

MODES = ("trajectory", "turn", "agent")
"""What `algorithm.advantage_mode` may be: a unit is an episode, a turn, or an agent of one."""


@dataclass(frozen=True)
class CreditUnits:
    """u units of m episodes of R response tokens; each token is of one unit.

    Attributes:
        episodes: number of the episode of each unit, int64 `[u]`.
        tokens: response tokens of each, int64 `[u]`.
        order: places of the tokens of the first unit, then of the second, and so on, int64 `[R]`.
        later: what later turns of the same agent were given, float32 `[u]`; 0 unless units are
            turns.
    """

    episodes: Tensor
    tokens: Tensor
    order: Tensor
    later: Tensor

    @classmethod
    def of(cls, batch: TokenBatch, episodes: Trajectories, mode: str) -> CreditUnits:
        """Cut the episodes of a batch into units.

        An episode without a response token is a unit of its own, which is in the baseline.

        Args:
            batch: the sequences.
            episodes: those of the batch.
            mode: one of `MODES`.

        Raises:
            ValueError: an unknown mode.
        """
        if mode not in MODES:
            raise ValueError(f"advantage_mode is '{mode}'; allowed: {', '.join(MODES)}")
        count = len(episodes.sizes)
        of_token = torch.repeat_interleave(torch.arange(count), episodes.tokens)
        if mode == "trajectory":
            # Sequences of agents side by side are not in the order of time; turns are.
            order = batch.turns.argsort(stable=True)
            order = order[of_token[order].argsort(stable=True)]
            return cls(torch.arange(count), episodes.tokens, order, torch.zeros(count))
        part = batch.turns if mode == "turn" else batch.agents
        empty = (episodes.tokens == 0).nonzero().squeeze(1)
        names = torch.stack(
            [torch.cat([of_token, empty]), torch.cat([part, torch.zeros_like(empty)])]
        )
        unique, ids = torch.unique(names, dim=1, return_inverse=True)
        ids = ids[: len(of_token)]
        tokens = torch.bincount(ids, minlength=unique.shape[1])
        units = cls(unique[0], tokens, ids.argsort(stable=True), torch.zeros(unique.shape[1]))
        if mode == "agent":
            return units
        return cls(units.episodes, tokens, units.order, units._given_later(batch))

    def rows(self, flat: Tensor) -> Tensor:
        """Lay what is known of response tokens out, a row per unit: `[R]` becomes `[u, L]`."""
        return pad_ragged(flat[self.order], self.tokens)

    def flat(self, rows: Tensor) -> Tensor:
        """Undo `rows`: `[u, L]` becomes `[R]`."""
        out = rows.new_empty(len(self.order))
        out[self.order] = rows[valid_entries(self.tokens)]
        return out

    def _given_later(self, batch: TokenBatch) -> Tensor:
        """Sum what later turns of an agent were given, for each turn, float32 `[u]`."""
        given = self.rows(batch.turn_rewards).double().sum(1)
        # Units are in the order of episodes, and of turns in an episode.
        agents = torch.full_like(self.episodes, -1)
        agents[self.tokens > 0] = self.rows(batch.agents)[self.tokens > 0, 0]
        later = torch.zeros_like(given)
        if not bool(given.any()):
            return later.float()
        _, ids = torch.unique(torch.stack([self.episodes, agents]), dim=1, return_inverse=True)
        order = ids.argsort(stable=True)
        sums = given[order].cumsum(0)
        totals = torch.zeros(int(ids.max()) + 1, dtype=given.dtype).index_add(0, ids, given)
        before = totals.cumsum(0)[ids[order]] - sums
        later[order] = before
        return later.float()
