"""Demonstrations as trajectories of a replay buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.data.demonstrations.load import Demonstrations
from rlinf.data.embodied import FinalObservations
from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.replay.trajectory import ReplayTrajectory

Keep = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Returns what a replay buffer keeps of observations, `[n, ...]` each."""


def replay_trajectories(
    demos: Demonstrations, chunks: int, keep: Keep
) -> Iterator[ReplayTrajectory]:
    """Yield episodes as a policy that acts in chunks would have played them.

    A row is a chunk of C actions, one after the other. Of the last chunk of an episode only what
    was done is valid.

    Args:
        demos: The episodes, with rewards.
        chunks: Actions in a chunk, C.
        keep: What is kept of observations.

    Raises:
        DatasetError: There are no rewards.
    """
    if demos.rewards is None:
        raise DatasetError(
            "the demonstrations have no rewards ('next.reward'), which a critic learns from; "
            "collect them with `rlinf collect`, or add that feature"
        )
    for episode in range(demos.num_episodes):
        begin, end = demos.begins[episode : episode + 2].tolist()
        final = {name: value[episode : episode + 1] for name, value in demos.final.items()}
        yield _trajectory(
            keep({name: value[begin:end:chunks] for name, value in demos.obs.items()}),
            demos.actions[begin:end],
            demos.rewards[begin:end],
            chunks,
            terminated=bool(demos.terminated[episode]),
            final=keep(final),
        )


def _trajectory(
    obs: Mapping[str, Tensor],
    actions: Tensor,
    rewards: Tensor,
    chunks: int,
    *,
    terminated: bool,
    final: Mapping[str, Tensor],
) -> ReplayTrajectory:
    """Return one episode, `[T, 1, C, ...]`.

    Args:
        obs: At the beginning of each chunk, `[T, ...]` each.
        actions: `[n, A]`.
        rewards: `[n]`.
        chunks: C.
        terminated: Whether it ended in a terminal state.
        final: In which it ended, `[1, ...]` each.
    """
    count = len(actions)
    rows = -(-count // chunks)
    lacking = rows * chunks - count
    valid = (torch.arange(rows * chunks) < count).view(rows, 1, chunks)
    ends = (torch.arange(rows * chunks) == count - 1).view(rows, 1, chunks)
    never = torch.zeros_like(ends)
    return ReplayTrajectory(
        obs={name: value[:, None] for name, value in obs.items()},
        actions=torch.cat([actions, actions[-1:].expand(lacking, -1)]).view(rows, 1, chunks, -1),
        rewards=functional.pad(rewards.float(), (0, lacking)).view(rows, 1, chunks),
        terminations=ends if terminated else never,
        truncations=never if terminated else ends,
        valid=valid,
        final=FinalObservations(torch.tensor([rows - 1]), torch.tensor([0]), dict(final)),
    )
