"""Datasets in memory, frame by frame, as learners use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf.data.demonstrations.names import group_of, observations_in
from rlinf.data.demonstrations.texts import TASK_DESCRIPTIONS, Texts
from rlinf.data.lerobot import DatasetError, LeRobotDataset, episodes
from rlinf.data.lerobot.transitions import ACTION, SUCCESS


@dataclass(frozen=True)
class Demonstrations:
    """N frames of E episodes, one episode after the other.

    Attributes:
        obs: Observations by the env's own names, `[N, ...]` each, raw; `task_descriptions` are
            `Texts`, other texts are left out.
        actions: What was executed, float32 or int64 `[N, A]`.
        begins: First frame of each episode, and N; int64 `[E + 1]`.
        rewards: float32 `[N]`; None if the datasets have none.
        terminated: Which episodes ended in a terminal state, bool `[E]`; others were truncated.
        solved: Whether the task was solved after the action of each frame, bool `[N]`; None if the
            datasets do not say.
        final: Observations in which episodes ended, `[E, ...]` each; where nothing follows a
            terminal state, its last frame stands for it.
        sources: Number of the folder that each episode is from, int64 `[E]`.
    """

    obs: dict[str, Tensor | Texts]
    actions: Tensor
    begins: Tensor
    rewards: Tensor | None
    terminated: Tensor
    solved: Tensor | None
    final: dict[str, Tensor | Texts]
    sources: Tensor

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def num_episodes(self) -> int:
        """Number of episodes, E."""
        return len(self.begins) - 1

    @property
    def success(self) -> Tensor | None:
        """Which episodes solved their task at any step, bool `[E]`; None as in `solved`."""
        if self.solved is None:
            return None
        lengths = self.begins.diff().tolist()
        return torch.stack([part.any() for part in self.solved.split(lengths)])

    @property
    def ends(self) -> Tensor:
        """The frame after the last one of each frame's episode, int64 `[N]`."""
        return self.begins[1:].repeat_interleave(self.begins.diff())

    def frames(self, episodes: Tensor) -> Tensor:
        """Return the frames of some episodes, int64 `[n]`.

        Args:
            episodes: Which, bool `[E]`.
        """
        return episodes.repeat_interleave(self.begins.diff()).nonzero().squeeze(1)

    def outcomes(self) -> dict[str, float]:
        """Return what the episodes came to: mean `return` and share of `success`, where known."""
        found = {}
        if self.rewards is not None:
            found["return"] = float(self.rewards.sum()) / self.num_episodes
        if self.success is not None:
            found["success_once"] = float(self.success.float().mean())
        return found

    def to(self, device: torch.device) -> Demonstrations:
        """Return this with all but pictures, which stay on the host, on a device."""

        def move(value: Tensor | Texts) -> Tensor | Texts:
            stays = isinstance(value, Texts) or value.dtype == torch.uint8
            return value if stays else value.to(device)

        return replace(
            self,
            obs={name: move(value) for name, value in self.obs.items()},
            final={name: move(value) for name, value in self.final.items()},
            actions=self.actions.to(device),
            rewards=None if self.rewards is None else self.rewards.to(device),
        )


class DemonstrationFolders:
    """Datasets in folders, opened; frames are read when they are asked for.

    Args:
        paths: Folders of LeRobot datasets, v3.0 or v2.1.
        observations: By observation of the env, the feature that holds it; where it says nothing,
            names decide.
        max_episodes: Use so many episodes of all folders together, the first ones; None is all.

    Raises:
        DatasetError: There is no dataset, or they do not go together.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        observations: Mapping[str, str] | None = None,
        max_episodes: int | None = None,
    ) -> None:
        if not paths:
            raise DatasetError("no dataset is named: data.train_data_paths is empty")
        self._sets = [LeRobotDataset(path) for path in paths]
        self._names = [
            observations_in(data.features, observations, str(data.root)) for data in self._sets
        ]
        self._max = max_episodes
        first = self._sets[0]
        for data, names in zip(self._sets[1:], self._names[1:], strict=True):
            for name in sorted(names.keys() | self._names[0].keys()):
                _require_alike(data, names.get(name), first, self._names[0].get(name), name)
            _require_alike(data, [ACTION], first, [ACTION], ACTION)
        if not any(data.num_episodes for data in self._sets):
            raise DatasetError(f"{first.root} has no episodes: collect some first")

    @property
    def names(self) -> list[str]:
        """Names of the observations."""
        return [*self._names[0], TASK_DESCRIPTIONS]

    def first_frame(self) -> tuple[dict[str, Any], Tensor]:
        """Return the observation `[1, ...]` and action `[1, A]` of the first frame."""
        data = next(data for data in self._sets if data.num_episodes)
        frame = data[0]
        obs = {
            name: _column(features, [frame[feature][None] for feature in features])
            for name, features in self._names[0].items()
            if data.features[features[0]].dtype != "string"
        }
        obs[TASK_DESCRIPTIONS] = [frame["task"]]
        return obs, _actions(np.asarray(frame[ACTION])[None])

    def load(self, wanted: Sequence[str] | None = None, only_success: bool = False) -> Any:
        """Read episodes into memory.

        Args:
            wanted: Names of observations; all but texts by default. Without pictures, no video is
                decoded.
            only_success: Leave out episodes that did not solve their task.

        Raises:
            DatasetError: An observation does not exist, or nothing is left.
        """
        wanted = list(self._names[0] if wanted is None else wanted)
        for name in wanted:
            if name not in self.names:
                raise DatasetError(
                    f"{self._sets[0].root} has no observation '{name}'; it has "
                    f"{', '.join(self.names)}. Name the feature in data.observations.{name}"
                )
        parts = list(self._parts(wanted, only_success))
        if not parts:
            where = ", ".join(str(data.root) for data in self._sets)
            raise DatasetError(
                f"{where}: no episode is left of those with success; data.only_success is true"
            )
        lengths = torch.tensor([0, *(len(part.actions) for part in parts)])
        known = [part.solved for part in parts]
        obs: dict[str, Any] = {}
        final: dict[str, Any] = {}
        for name in wanted:
            columns, ends = [p.obs[name] for p in parts], [p.final[name] for p in parts]
            texts = name == TASK_DESCRIPTIONS
            obs[name] = Texts.join(columns) if texts else torch.cat(columns)
            final[name] = Texts(ends) if texts else torch.stack(ends)
        return Demonstrations(
            obs=obs,
            actions=torch.cat([part.actions for part in parts]),
            begins=lengths.cumsum(0),
            rewards=None
            if any(part.rewards is None for part in parts)
            else torch.cat([part.rewards for part in parts]),
            terminated=torch.tensor([part.terminated for part in parts]),
            solved=None if any(part is None for part in known) else torch.cat(known),
            final=final,
            sources=torch.tensor([part.source for part in parts]),
        )

    def _parts(self, wanted: list[str], only_success: bool) -> Iterator[_Part]:
        left = self._max
        for source, (data, names) in enumerate(zip(self._sets, self._names, strict=True)):
            stored = {name: names[name] for name in wanted if name != TASK_DESCRIPTIONS}
            features = [feature for of_one in stored.values() for feature in of_one]
            solved = _successes(data) if SUCCESS in data.features else [None] * data.num_episodes
            if only_success and SUCCESS not in data.features:
                raise DatasetError(
                    f"{data.root} does not say which episodes solved their task: it has no feature "
                    f"'{SUCCESS}'; set data.only_success to false"
                )
            for episode in episodes(data, features):
                own = solved[episode.episode]
                if only_success and not own.any():
                    continue
                if left is not None:
                    if left == 0:
                        return
                    left -= 1
                part = _part(episode, stored, own, source)
                if TASK_DESCRIPTIONS in wanted:
                    part.obs[TASK_DESCRIPTIONS] = Texts(episode.tasks)
                    part.final[TASK_DESCRIPTIONS] = episode.tasks[-1]
                yield part


@dataclass(frozen=True)
class _Part:
    """One episode."""

    obs: dict[str, Tensor | Texts]
    actions: Tensor
    rewards: Tensor | None
    terminated: bool
    solved: Tensor | None
    final: dict[str, Tensor | str]
    source: int


def _part(
    episode: Any, names: Mapping[str, list[str]], solved: np.ndarray | None, source: int
) -> _Part:
    def column(source: Mapping[str, Any], name: str) -> Tensor:
        return _column(names[name], [source[_short(feature)] for feature in names[name]])

    last = {key: np.asarray(value)[-1] for key, value in episode.observations.items()}
    final = {key: np.asarray(v) for key, v in (episode.final_observation or last).items()}
    final = {key: value[None] for key, value in final.items()}
    return _Part(
        obs={name: column(episode.observations, name) for name in names},
        actions=_actions(episode.actions),
        rewards=None if episode.rewards is None else torch.from_numpy(episode.rewards.copy()),
        terminated=bool(episode.terminations[-1]),
        solved=None if solved is None else _solved(solved, len(episode)),
        final={name: column(final, name)[0] for name in names},
        source=source,
    )


def _solved(flags: np.ndarray, length: int) -> Tensor:
    """Return the flags of the transitions of an episode, bool `[length]`.

    Where the last frame stands for what follows the one before it, its flag does, too.
    """
    kept = flags[:length].copy()
    kept[-1] |= flags[-1]
    return torch.from_numpy(kept)


def _column(features: Sequence[str], values: Sequence[np.ndarray]) -> Tensor:
    """Return an observation `[T, ...]`; that of a group of cameras `[T, V, H, W, C]`."""
    array = values[0] if group_of(features[0]) is None else np.stack(values, axis=1)
    array = np.ascontiguousarray(array)
    tensor = torch.from_numpy(array.copy())
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _actions(array: np.ndarray) -> Tensor:
    array = np.asarray(array)
    whole = array.dtype.kind in "iub"
    return torch.from_numpy(array.astype(np.int64 if whole else np.float32))


def _successes(data: LeRobotDataset) -> list[np.ndarray]:
    """Return of each episode whether the task was solved after each of its frames."""
    return [e.values[SUCCESS].reshape(-1).astype(bool) for e in data.episodes([SUCCESS])]


def _short(feature: str) -> str:
    # As `rlinf.data.lerobot.transitions` calls it.
    return feature.removeprefix("observation.") if feature != "observation" else "state"


def _require_alike(
    data: LeRobotDataset,
    own: list[str] | None,
    first: LeRobotDataset,
    known: list[str] | None,
    name: str,
) -> None:
    """Refuse datasets whose frames cannot be put one after the other."""
    if own is None or known is None:
        lacks, has = (data, first) if own is None else (first, data)
        raise DatasetError(
            f"{lacks.root} lacks '{name}', which {has.root} has: datasets that are learned from "
            "together have the same observations"
        )
    shapes = [data.features[f].shape for f in own], [first.features[f].shape for f in known]
    if shapes[0] != shapes[1]:
        raise DatasetError(
            f"'{name}' has the shape {shapes[0]} in {data.root} and {shapes[1]} in {first.root}: "
            "datasets that are learned from together must agree"
        )
