"""In which order samples of a dataset are learned from, and chunks of actions in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.data.demonstrations.load import Demonstrations
from rlinf.utils.determinism import named_seed


class SampleOrder:
    """An endless order of samples: one permutation of all of them after the other.

    It is a function of the seed and the position, so that the position is all there is to save,
    and so that ranks that share out a batch need not talk.

    Args:
        count: Number of samples.
        seed: Of the permutations.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def rows(self, position: int, count: int) -> Tensor:
        """Return the samples from a position on, int64 `[count]`."""
        parts = []
        while count:
            epoch, offset = divmod(position, self._count)
            part = self._permutation(epoch)[offset : offset + count]
            parts.append(part)
            position, count = position + len(part), count - len(part)
        return torch.cat(parts)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            own = torch.Generator().manual_seed(named_seed(self._seed, "order", epoch))
            self._epoch, self._order = epoch, torch.randperm(self._count, generator=own)
        return self._order


class MixtureOrder(SampleOrder):
    """An endless order of samples of several sets, each with its share whatever its size.

    A pass has as many samples as all sets together. Each set gives its share of them, going on with
    its own order where the pass before ended.

    Args:
        sets: Samples of each set, int64 `[n]` each.
        weights: Of each set, above 0.
        seed: Of the order.
    """

    def __init__(self, sets: Sequence[Tensor], weights: Sequence[float], seed: int) -> None:
        count = sum(len(rows) for rows in sets)
        super().__init__(count, seed)
        self._sets, self._shares = sets, whole_shares(count, weights)
        self._orders = [
            SampleOrder(len(rows), named_seed(seed, "set", number))
            for number, rows in enumerate(sets)
        ]

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            parts = [
                rows[order.rows(epoch * share, share)]
                for rows, order, share in zip(self._sets, self._orders, self._shares, strict=True)
                if share
            ]
            own = torch.Generator().manual_seed(named_seed(self._seed, "order", epoch))
            mixed = torch.randperm(self._count, generator=own)
            self._epoch, self._order = epoch, torch.cat(parts)[mixed]
        return self._order


def whole_shares(count: int, weights: Sequence[float]) -> list[int]:
    """Split a count by weights into whole numbers, the largest remainders rounded up."""
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def sample_noise(seed: int, position: int, count: int, width: int) -> Tensor:
    """Return standard normal noise for the samples from a position on, float32 `[count, width]`.

    Args:
        seed: Of the noise.
        position: Number of the first sample, as in `SampleOrder.rows`.
        count: Samples of the batches that begin there.
        width: Numbers per sample.
    """
    own = torch.Generator().manual_seed(named_seed(seed, "noise", position))
    return torch.randn(count, width, generator=own)


class ChunkSamples:
    """Each frame of demonstrations, with the chunk of actions that begins there.

    Args:
        demos: The demonstrations.
        chunks: Actions in a chunk, C.
    """

    def __init__(self, demos: Demonstrations, chunks: int) -> None:
        self.demos, self._chunks = demos, chunks
        self._ends = demos.ends

    def __len__(self) -> int:
        return len(self.demos)

    def valid(self, rows: Tensor) -> Tensor:
        """Return which actions of chunks lie inside of their episode, bool `[n, C]`."""
        return self._places(rows) < self._ends[rows, None]

    def take(self, rows: Tensor) -> tuple[dict[str, Any], Tensor]:
        """Return observations, tensors `[n, ...]` or n texts each, and actions `[n, C, A]`.

        Behind the end of an episode its last action is repeated; see `valid`.

        Args:
            rows: Frames, int64 `[n]`, on the host.
        """
        places = torch.minimum(self._places(rows), self._ends[rows, None] - 1)
        obs = {name: value[rows] for name, value in self.demos.obs.items()}
        return obs, self.demos.actions[places]

    def _places(self, rows: Tensor) -> Tensor:
        return rows[:, None] + torch.arange(self._chunks)
