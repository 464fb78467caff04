"""Observations of datasets, each with whether the task is solved in it: what reward models learn.

Frame `t` of an episode holds the observation `o_t`, and `next.success` says whether the task is
solved in `o_{t+1}`. So `o_1` to `o_T` of an episode of T steps have a label, and `o_0` has none.
These are the observations that actions lead to, which is what a reward model is asked about.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.data.demonstrations.load import Demonstrations
from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.transitions import SUCCESS
from rlinf.utils.determinism import named_seed


@dataclass(frozen=True)
class SuccessFrames:
    """N observations of E episodes.

    Attributes:
        obs: By name, `[N, ...]` each.
        labels: Whether the task is solved, bool `[N]`.
        num_episodes: Number of episodes, E.
    """

    obs: dict[str, Tensor]
    labels: Tensor
    num_episodes: int

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> SuccessFrames:
        """Return this with all but pictures, which stay on the host, on a device."""
        obs = {
            name: value if value.dtype == torch.uint8 else value.to(device)
            for name, value in self.obs.items()
        }
        return SuccessFrames(obs, self.labels.to(device), self.num_episodes)

    def take(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return observations `[n, ...]` each and labels `[n]`.

        Args:
            rows: Which, int64 `[n]`, on the host.
        """
        return {name: value[rows] for name, value in self.obs.items()}, self.labels[rows]


def split_success_frames(
    demos: Demonstrations, val_fraction: float, seed: int, persists: bool = False
) -> tuple[SuccessFrames, SuccessFrames]:
    """Label the observations of episodes; return those to train on, and those to evaluate with.

    Whole episodes are held out, as neighbouring frames are almost equal. Of those that solved
    their task, and of the others, the same share is drawn, at least one.

    Args:
        demos: The episodes.
        val_fraction: Share of the episodes to hold out.
        seed: Of the draw.
        persists: All observations after the first success of an episode count as solved.

    Raises:
        DatasetError: The datasets do not say when tasks were solved, or there are not both
            episodes with and without success, two of each.
    """
    success = demos.success
    if success is None:
        raise DatasetError(
            f"the datasets of data.train_data_paths have no feature '{SUCCESS}', so nothing says "
            "in which observations the task is solved; collect them with `rlinf collect`, or add it"
        )
    counts = {True: int(success.sum()), False: int((~success).sum())}
    if min(counts.values()) < 2:
        raise DatasetError(
            f"{counts[True]} episodes of data.train_data_paths solved their task and "
            f"{counts[False]} did not: a reward model needs two or more of each, one to train on "
            "and one to be evaluated with; add episodes, such as those of `rlinf collect` with "
            "collect.policy=scripted or collect.policy=random"
        )
    held_out = torch.zeros(len(success), dtype=torch.bool)
    generator = torch.Generator().manual_seed(named_seed(seed, "reward model", "held out"))
    for kind in (success, ~success):
        episodes = kind.nonzero().flatten()
        count = min(max(1, round(val_fraction * len(episodes))), len(episodes) - 1)
        order = torch.randperm(len(episodes), generator=generator)
        held_out[episodes[order[:count]]] = True
    of_frames = held_out.repeat_interleave(demos.begins.diff())
    labels, obs = _labels(demos, persists), _outcomes(demos)
    train, evaluation = (
        SuccessFrames(
            {name: value[kept] for name, value in obs.items()}, labels[kept], int(episodes.sum())
        )
        for kept, episodes in ((~of_frames, ~held_out), (of_frames, held_out))
    )
    return train, evaluation


def _labels(demos: Demonstrations, persists: bool) -> Tensor:
    """Return whether the task is solved in what follows each frame, bool `[N]`."""
    if not persists:
        return demos.solved
    parts = demos.solved.split(demos.begins.diff().tolist())
    return torch.cat([part.cumsum(0) > 0 for part in parts])


def _outcomes(demos: Demonstrations) -> dict[str, Tensor]:
    """Return the observation that follows each frame, `[N, ...]` each."""
    last = demos.begins[1:] - 1
    outcomes = {}
    for name, value in demos.obs.items():
        outcomes[name] = value.roll(-1, 0)
        outcomes[name][last] = demos.final[name].to(value.dtype)
    return outcomes
