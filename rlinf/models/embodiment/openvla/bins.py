"""Actions as tokens: each number of an action is one of N bins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlinf.utils.precise_buffers import PreciseBuffers


class ActionBins(PreciseBuffers):
    """Brings actions of the env to indices of bins and back.

    With N edges from -1 to 1, a number in [e_i, e_(i+1)) has the index i; 1 itself has N - 1. There
    are N - 1 centres, so the last two indices stand for the same action. As tokens, index i is the
    i-th from the top of the vocabulary.

    Numbers that `mask` names are scaled to [-1, 1] from `[low, high]` first; the others are taken
    as they are. All three are saved with the weights: a policy means nothing without them.

    Attributes:
        count: N.
        low: What -1 stands for, `[A]` float32; `q01` of the dataset, or the env's least action.
        high: What 1 stands for, `[A]` float32.
        mask: Which numbers are scaled, `[A]` bool.
    """

    low: Tensor
    high: Tensor
    mask: Tensor
    edges: Tensor
    centers: Tensor

    def __init__(
        self,
        count: int,
        low: Sequence[float],
        high: Sequence[float],
        mask: Sequence[bool] | None = None,
    ) -> None:
        """Keep the bounds.

        Args:
            count: N, at least 2.
            low: What -1 stands for, A numbers.
            high: What 1 stands for, A numbers.
            mask: Which numbers are scaled; None is all.
        """
        super().__init__()
        self.count = count
        edges = torch.linspace(-1.0, 1.0, count)
        self.register_buffer("low", torch.tensor(low, dtype=torch.float32))
        self.register_buffer("high", torch.tensor(high, dtype=torch.float32))
        scaled = [True] * len(low) if mask is None else list(mask)
        self.register_buffer("mask", torch.tensor(scaled))
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("centers", (edges[1:] + edges[:-1]) / 2, persistent=False)

    def normalize(self, actions: Tensor) -> Tensor:
        """Return actions as the bins see them, in [-1, 1]; what cannot vary is 0.

        Args:
            actions: In the units of the env, `[..., A]`.
        """
        actions, span = actions.float(), self.high - self.low
        scaled = 2.0 * (actions - self.low) / torch.where(span > 0, span, 1.0) - 1.0
        scaled = torch.where(span > 0, scaled, 0.0)
        return torch.where(self.mask, scaled, actions).clamp(-1.0, 1.0)

    def encode(self, actions: Tensor) -> Tensor:
        """Return the indices of actions, `[n, C*A]` int64.

        Args:
            actions: In the units of the env, `[n, C, A]`.
        """
        index = torch.bucketize(self.normalize(actions), self.edges, right=True) - 1
        return index.flatten(1)

    def decode(self, index: Tensor) -> Tensor:
        """Return actions in the units of the env, `[n, C, A]` float32.

        Args:
            index: `[n, C*A]` int64; those out of range become NaN, which envs refuse.
        """
        known = (index >= 0) & (index < self.count)
        value = self.centers[index.clamp(0, self.count - 2)]
        value = torch.where(known, value, torch.nan).unflatten(1, (-1, len(self.low)))
        scaled = (value + 1.0) / 2.0 * (self.high - self.low) + self.low
        return torch.where(self.mask, scaled, value)
