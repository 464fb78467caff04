"""Episodes as transitions: what a replay buffer is filled with.

Frame `t` of a dataset holds the observation `o_t`, the action `a_t` that was executed after it, and
what followed: `next.reward`, and `next.terminated` and `next.truncated`, or `next.done`. The
observation after the last action is kept by datasets that were written with `final_observations`.
Without it, the last frame of an episode that did not terminate has no successor to learn from: it
becomes the final observation of the frames before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.reader import Episode, LeRobotDataset

ACTION, REWARD = "action", "next.reward"
TERMINATED, TRUNCATED, DONE = "next.terminated", "next.truncated", "next.done"
SUCCESS = "next.success"


@dataclass(frozen=True)
class EpisodeTransitions:
    """The transitions of one episode, T of them.

    Attributes:
        episode: Number of the episode in its dataset.
        observations: Array `[T, *shape]`, or list of texts, by the name of the feature without
            `observation.`; the feature `observation` itself is `state`.
        actions: Actions that were executed, `[T, A]`.
        rewards: float32 `[T]`; None if the dataset has none.
        terminations: bool `[T]`, true where the task ended: nothing follows.
        truncations: bool `[T]`, true where the recording ended before the task did.
        final_observation: What follows the last action, as one entry of `observations`; None only
            if the episode terminated, where no value follows.
        tasks: Text of the task of each transition.
    """

    episode: int
    observations: dict[str, Any]
    actions: np.ndarray
    rewards: np.ndarray | None
    terminations: np.ndarray
    truncations: np.ndarray
    final_observation: dict[str, Any] | None
    tasks: list[str]

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self.actions)


def episodes(
    dataset: LeRobotDataset, observations: Sequence[str] | None = None
) -> Iterator[EpisodeTransitions]:
    """Yield the transitions of each episode, read one at a time.

    Args:
        dataset: The dataset.
        observations: Features to use as observations; all whose names begin with `observation` by
            default. Without cameras, no video is decoded.

    Raises:
        DatasetError: There is no action, or an episode goes on after its end. An episode of one
            frame that neither terminated nor has a final observation has no transition and is an
            error too.
    """
    names = list(observations or [n for n in dataset.features if n.startswith("observation")])
    if ACTION not in dataset.features:
        raise DatasetError(
            f"{dataset.root} has no feature '{ACTION}'; it has {', '.join(dataset.features)}"
        )
    ends = [n for n in (REWARD, TERMINATED, TRUNCATED, DONE) if n in dataset.features]
    for index in range(dataset.num_episodes):
        yield _transitions(dataset, dataset.episode(index, [*names, ACTION, *ends]), names)


def _transitions(
    dataset: LeRobotDataset, episode: Episode, names: Sequence[str]
) -> EpisodeTransitions:
    where = f"{dataset.root}, episode {episode.index}"
    values, length = episode.values, episode.length
    terminated = _flags(values, TERMINATED if TERMINATED in values else DONE, length)
    truncated = _flags(values, TRUNCATED, length)
    early = np.flatnonzero((terminated | truncated)[:-1])
    if len(early):
        raise DatasetError(
            f"{where} ends at frame {early[0]} and has {length} frames: an end is only possible at "
            "the last one; trim it"
        )
    final = episode.final_observation
    kept = length
    if final is None and not terminated[-1]:
        kept = length - 1
        final = {name: values[name][-1] for name in names}
        if kept == 0:
            raise DatasetError(
                f"{where} has one frame and no end: it has no transition; leave it out with select"
            )
    truncated = truncated[:kept]
    truncated[-1] |= not terminated[kept - 1]
    return EpisodeTransitions(
        episode=episode.index,
        observations={_short(name): values[name][:kept] for name in names},
        actions=values[ACTION][:kept],
        rewards=values[REWARD].reshape(length)[:kept].astype(np.float32)
        if REWARD in values
        else None,
        terminations=terminated[:kept],
        truncations=truncated,
        final_observation=None
        if final is None
        else {_short(name): final[name] for name in names if name in final},
        tasks=episode.tasks[:kept],
    )


def _flags(values: dict[str, Any], name: str, length: int) -> np.ndarray:
    if name not in values:
        return np.zeros(length, dtype=bool)
    return values[name].reshape(length).astype(bool)


def _short(name: str) -> str:
    return name.removeprefix("observation.") if name != "observation" else "state"
