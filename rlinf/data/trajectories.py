"""The episodes of a token batch: which sequences are of one, and what is known of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.data.token_batch import TokenBatch


@dataclass(frozen=True)
class Trajectories:
    """m episodes of n sequences; those of one stand together.

    Attributes:
        sizes: sequences of each, int64 `[m]`.
        tokens: response tokens of each, those of all its sequences, int64 `[m]`.
        indices: number of each one's prompt in the run, int64 `[m]`.
        numbers: number of each in its group, int64 `[m]`.
        rewards: float32 `[m]`.
        turn_rewards: what the turns of each were given beside that, float32 `[m]`.
        truncated: whether one of its sequences was cut, bool `[m]`.
        left_out: whether it does not count, bool `[m]`.
    """

    sizes: Tensor
    tokens: Tensor
    indices: Tensor
    numbers: Tensor
    rewards: Tensor
    turn_rewards: Tensor
    truncated: Tensor
    left_out: Tensor

    @classmethod
    def of(cls, batch: TokenBatch) -> Trajectories:
        """Find the episodes of a batch.

        Raises:
            ValueError: sequences of an episode do not stand together, or have several rewards.
        """
        count = batch.num_sequences
        begins = torch.ones(count, dtype=torch.bool)
        begins[1:] = (batch.indices.diff() != 0) | (batch.trajectories.diff() != 0)
        first = begins.nonzero().squeeze(1)
        ids = begins.long().cumsum(0) - 1
        sizes = torch.bincount(ids, minlength=len(first))
        zeros = torch.zeros(len(first), dtype=torch.int64)
        of_tokens = torch.repeat_interleave(ids, batch.responses)
        _check(batch, first, ids)
        return cls(
            sizes=sizes,
            tokens=zeros.index_add(0, ids, batch.responses),
            indices=batch.indices[first],
            numbers=batch.trajectories[first],
            rewards=batch.rewards[first],
            turn_rewards=zeros.float().index_add(0, of_tokens, batch.turn_rewards.float()),
            truncated=zeros.index_add(0, ids, batch.truncated.long()) > 0,
            left_out=batch.left_out[first],
        )


def _check(batch: TokenBatch, first: Tensor, ids: Tensor) -> None:
    names = torch.stack([batch.indices[first], batch.trajectories[first]])
    unique, counts = torch.unique(names, dim=1, return_counts=True)
    if bool((counts > 1).any()):
        prompt, number = unique[:, counts > 1][:, 0].tolist()
        raise ValueError(
            f"the sequences of episode {number} of prompt {prompt} do not stand together; keep "
            "those of an episode next to each other in SampleGroup.samples"
        )
    same = torch.isclose(batch.rewards, batch.rewards[first][ids], rtol=0, atol=0, equal_nan=True)
    if not bool(same.all()):
        row = int((~same).nonzero()[0])
        raise ValueError(
            f"the sequences of episode {int(batch.trajectories[row])} of prompt "
            f"{int(batch.indices[row])} have several rewards; an episode has one"
        )
