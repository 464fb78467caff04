"""How a rollout worker serves an evaluation: alike, however envs are spread over workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlinf.data.embodied_messages import Obs, select_rows

Act = Callable[[Obs], Sequence[Tensor]]


def act_in_blocks(act: Act, size: int, obs: Obs, episodes: list[int], *results: Tensor) -> None:
    """Act on observations in blocks of one size, in which each episode has its own place.

    The last bits of a row of a matrix product depend on how many rows there are and on which of
    them it is. So the policy always sees `size` observations, and that of episode `e` is number
    `e mod size` of them: an episode goes alike however many envs and workers there are.

    Args:
        act: Acts on a batch of observations; returns the actions, and whatever else is wanted.
        size: Observations that it sees at a time.
        obs: Tensors `[B, ...]`, and texts, lists of B.
        episodes: Number of the episode of each; -1 if none runs there.
        *results: Get what `act` returns, `[B, ...]` each; rows of envs without an episode stay.
    """
    for block in _blocks(episodes, size):
        rows = [block.get(place, -1) for place in range(size)]
        # What is in empty places does not matter. Copies begin where memory is aligned: that, too,
        # may decide how is computed.
        filled = torch.tensor([row if row >= 0 else next(iter(block.values())) for row in rows])
        for result, out in zip(results, act(select_rows(obs, filled)), strict=True):
            result[list(block.values())] = out[list(block)]


def _blocks(episodes: list[int], size: int) -> list[dict[int, int]]:
    """As few blocks as it takes, each from places to rows of the batch."""
    blocks: list[dict[int, int]] = []
    for row, number in enumerate(episodes):
        if number < 0:
            continue
        place = number % size
        block = next((block for block in blocks if place not in block), None)
        if block is None:
            blocks.append(block := {})
        block[place] = row
    return blocks


class Clients:
    """The env workers that a rollout worker serves, of which some end before the others.

    Args:
        shares: Rank and number of envs of each, in order.
        env_ids: Numbers, in the whole run, of the envs, in the same order.
    """

    def __init__(self, shares: list[tuple[int, int]], env_ids: list[int]) -> None:
        self._left: dict[int, list[int]] = {}
        for rank, count in shares:
            self._left[rank], env_ids = env_ids[:count], env_ids[count:]

    @property
    def ranks(self) -> list[int]:
        """Those that have not ended."""
        return list(self._left)

    @property
    def env_ids(self) -> list[int]:
        """Numbers of their envs, in order."""
        return [number for ids in self._left.values() for number in ids]

    def drop(self, over: Tensor) -> Tensor:
        """Forget those that have ended; return the rows of the others, int64 `[m]`.

        Args:
            over: Whether the worker of an env has ended, bool `[B]`, of all that had not before.
        """
        begin = 0
        for rank, ids in list(self._left.items()):
            if over[begin]:
                del self._left[rank]
            begin += len(ids)
        return (~over).nonzero().squeeze(1)
