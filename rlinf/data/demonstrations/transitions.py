"""Transitions of demonstrations: chunks of actions, what they earned, and what followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf.data.demonstrations.load import Demonstrations
from rlinf.data.demonstrations.sampling import ChunkSamples
from rlinf.data.lerobot import DatasetError


@dataclass(frozen=True)
class Transitions:
    """n transitions.

    Attributes:
        obs: Observations, tensors `[n, ...]` or n texts each.
        actions: Chunks, `[n, C, A]`; behind the end of an episode its last action is repeated.
        valid: Which actions are of the episode, bool `[n, C]`.
        rewards: Discounted sums over valid actions, `[n]`.
        bootstrap: Discounts of the next observations, 0 where these are terminal, `[n]`.
        next_obs: Observations after the last valid action, `[n, ...]` each.
    """

    obs: dict[str, Any]
    actions: Tensor
    valid: Tensor
    rewards: Tensor
    bootstrap: Tensor
    next_obs: dict[str, Any]


class ChunkTransitions:
    """Each frame of demonstrations as a transition over the chunk that begins there.

    Args:
        demos: The demonstrations.
        chunks: Actions in a chunk, C.
        gamma: Discount of a step.

    Raises:
        DatasetError: The demonstrations have no rewards.
    """

    def __init__(self, demos: Demonstrations, chunks: int, gamma: float) -> None:
        if demos.rewards is None:
            raise DatasetError(
                "the data have no rewards, and this learner needs them: it reads the feature "
                "'next.reward'; collect episodes that have it, or clone them with "
                "algorithm.loss_type embodied_bc"
            )
        self._demos, self._samples = demos, ChunkSamples(demos, chunks)
        ends, rows = demos.ends, torch.arange(len(demos))
        self._episode = torch.arange(demos.num_episodes).repeat_interleave(demos.begins.diff())
        lengths = torch.minimum(ends - rows, torch.tensor(chunks))
        self._next = rows + lengths
        self._ended = self._next == ends
        terminal = self._ended & demos.terminated[self._episode]
        self._rewards = _sums_ahead(demos.rewards.cpu().double(), lengths, gamma).float()
        self._bootstrap = torch.where(terminal, 0.0, gamma ** lengths.double()).float()
        self._return_scale = _deviation(demos, gamma)

    def __len__(self) -> int:
        return len(self._demos)

    @property
    def return_deviation(self) -> float:
        """Standard deviation of the discounted returns of all frames; 1 if they are all alike."""
        return self._return_scale

    def take(self, rows: Tensor) -> Transitions:
        """Return transitions.

        Args:
            rows: Frames that they begin with, int64 `[n]`, on the host.
        """
        obs, actions = self._samples.take(rows)
        ended, episode = self._ended[rows], self._episode[rows]
        # Where an episode ends there may be no frame behind it.
        inside = torch.where(ended, rows, self._next[rows])
        next_obs = {}
        for name, value in self._demos.obs.items():
            following = value[inside]
            # An episode has the same task to its end.
            if isinstance(following, Tensor):
                following[ended] = self._demos.final[name][episode[ended]]
            next_obs[name] = following
        device = actions.device
        return Transitions(
            obs,
            actions,
            self._samples.valid(rows).to(device),
            self._rewards[rows].to(device),
            self._bootstrap[rows].to(device),
            next_obs,
        )


def _sums_ahead(rewards: Tensor, lengths: Tensor, gamma: float) -> Tensor:
    """Return `sum_i gamma^i r_(t+i)` over the so many steps from each on, `[N]`."""
    total, rows = torch.zeros_like(rewards), torch.arange(len(rewards))
    for step in range(int(lengths.max())):
        within = step < lengths
        total[within] += gamma**step * rewards[rows[within] + step]
    return total


def _deviation(demos: Demonstrations, gamma: float) -> float:
    rewards, returns = demos.rewards.cpu().double(), torch.empty(len(demos), dtype=torch.float64)
    for begin, end in zip(demos.begins[:-1].tolist(), demos.begins[1:].tolist(), strict=True):
        following = 0.0
        for row in range(end - 1, begin - 1, -1):
            following = float(rewards[row]) + gamma * following
            returns[row] = following
    deviation = float(returns.std(correction=0))
    return deviation if deviation > 1e-8 else 1.0
