"""Reads a dataset: whole episodes, single frames, and windows of frames around one."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlinf.config.suggest import did_you_mean
from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.features import Feature, nest
from rlinf.data.lerobot.layout import find_root
from rlinf.data.lerobot.metadata import EpisodeRecord, Metadata
from rlinf.data.lerobot.statistics import Stats
from rlinf.data.lerobot.tables import FrameTable, decode_picture, from_arrow
from rlinf.data.lerobot.video import VideoFile, rate_of

_OPEN_FILES = 8
_TOLERANCE_S = 1e-4

File = TypeVar("File", FrameTable, VideoFile)


@dataclass(frozen=True)
class Episode:
    """One episode.

    Attributes:
        index: Its number.
        length: Its frames, T.
        tasks: Text of the task of each frame.
        values: Array `[T, *shape]`, or list of texts, of each feature that was asked for. Pictures
            are uint8 `[T, H, W, C]`; features that every dataset has are `[T]`.
        final_observation: The observation after the last frame; None if it was not kept.
    """

    index: int
    length: int
    tasks: list[str]
    values: dict[str, Any]
    final_observation: dict[str, Any] | None

    def nested(self) -> dict[str, Any]:
        """Return the values as nested dicts: `observation.state` is `["observation"]["state"]`."""
        return nest(self.values)


class LeRobotDataset:
    """A dataset on disk, v3.0 or v2.1. Nothing but its metadata is kept in memory.

    It may be sent to other processes; each opens its own files. One object is for one thread.

    Attributes:
        metadata: All of its metadata.
    """

    def __init__(
        self,
        source: str | Path,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Open a dataset.

        Args:
            source: Its folder, its folder in the hub's cache, or `owner/name` of one that was
                downloaded.
            delta_timestamps: For some features, which frames an item holds, in seconds from its
                own frame: `{"action": [0, 0.1, 0.2]}` is a chunk of three actions at 10 frames per
                second.

        Raises:
            DatasetError: There is none, it is damaged, or a timestamp falls between two frames.
        """
        self.metadata = Metadata.load(find_root(source))
        self._deltas = {
            name: self._steps(name, times) for name, times in (delta_timestamps or {}).items()
        }
        self._starts = [record.start for record in self.metadata.episodes]
        self._files: OrderedDict[Path, FrameTable | VideoFile] = OrderedDict()

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.metadata.root

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.metadata.info.fps

    @property
    def features(self) -> dict[str, Feature]:
        """Features by name."""
        return self.metadata.info.features

    @property
    def tasks(self) -> list[str]:
        """Texts of all tasks."""
        return self.metadata.tasks

    @property
    def stats(self) -> dict[str, Stats]:
        """Statistics by feature."""
        return self.metadata.stats

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self.metadata.episodes)

    def __len__(self) -> int:
        """Return the number of frames."""
        return self.metadata.info.total_frames

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return frame `index` of the dataset.

        Returns:
            The value of each feature, and `task`, its text. Of a feature with `delta_timestamps`
            the frames of its window, `[W, *shape]`, and `<name>_is_pad`, bool `[W]`: whether they
            lie outside the episode, whose first or last frame stands there.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.root} has {len(self)} frames; {index} is not one of them")
        index %= len(self)
        record = self.metadata.episodes[bisect.bisect_right(self._starts, index) - 1]
        own = index - record.start
        item: dict[str, Any] = {}
        for names, steps in self._windows():
            rows = np.array([own]) if steps is None else own + steps
            inside = np.clip(rows, 0, record.length - 1)
            values = self._read(record, inside.tolist(), names)
            for name in names:
                item[name] = values[name][0] if steps is None else values[name]
                if steps is not None:
                    item[f"{name}_is_pad"] = inside != rows
        task = item["task_index"]
        item["task"] = self._task(int(task if np.ndim(task) == 0 else task[0]), record)
        return item

    def episode(self, index: int, features: Sequence[str] | None = None) -> Episode:
        """Read an episode.

        Args:
            index: Its number.
            features: What to read; everything by default. Without cameras, no video is decoded.

        Raises:
            IndexError: There is no such episode.
            DatasetError: A feature does not exist, or a file is missing or damaged.
        """
        if not 0 <= index < self.num_episodes:
            raise IndexError(
                f"{self.root} has {self.num_episodes} episodes; {index} is not one of them"
            )
        record = self.metadata.episodes[index]
        names = list(self.features if features is None else features)
        for name in names:
            self._known(name)
        rows = list(range(record.length))
        values = self._read(record, rows, list(dict.fromkeys([*names, "task_index"])))
        tasks = [self._task(int(number), record) for number in values["task_index"]]
        final = self._final(record, names)
        return Episode(index, record.length, tasks, {n: values[n] for n in names}, final)

    def episodes(self, features: Sequence[str] | None = None) -> Iterator[Episode]:
        """Yield all episodes, read one at a time; see `episode`."""
        for index in range(self.num_episodes):
            yield self.episode(index, features)

    def close(self) -> None:
        """Close all files; they are opened again when they are needed."""
        while self._files:
            self._files.popitem()[1].close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files behind."""
        return {**self.__dict__, "_files": OrderedDict()}

    def _windows(self) -> list[tuple[list[str], np.ndarray | None]]:
        """Return which features are read together: single frames, then each window."""
        single = [name for name in self.features if name not in self._deltas]
        return [(single, None), *(([name], steps) for name, steps in self._deltas.items())]

    def _steps(self, name: str, times: Sequence[float]) -> np.ndarray:
        self._known(name)
        frames = np.asarray(times, dtype=np.float64).reshape(-1) * self.fps
        off = np.abs(frames - np.round(frames)) / self.fps > _TOLERANCE_S
        if off.any() or not len(frames):
            raise DatasetError(
                f"{self.root}, feature '{name}': delta_timestamps {list(times)} must be multiples "
                f"of 1/{self.fps:g} s, at least one"
            )
        return np.round(frames).astype(int)

    def _known(self, name: str) -> None:
        if name not in self.features:
            hint = did_you_mean(name, self.features)
            raise DatasetError(
                f"{self.root} has no feature '{name}'; it has {', '.join(self.features)}. {hint}"
            )

    def _task(self, number: int, record: EpisodeRecord) -> str:
        if not 0 <= number < len(self.tasks):
            raise DatasetError(
                f"{self.root / record.data}, episode {record.index}: task_index is {number}; there "
                f"are {len(self.tasks)} tasks"
            )
        return self.tasks[number]

    def _read(self, record: EpisodeRecord, rows: list[int], names: Sequence[str]) -> dict[str, Any]:
        """Return features of some frames of an episode."""
        stored = [name for name in names if self.features[name].dtype != "video"]
        values: dict[str, Any] = {}
        if stored:
            values = self._read_table(record, rows, stored)
        for name in names:
            if self.features[name].dtype == "video":
                values[name] = self._read_video(record, rows, name)
        return values

    def _read_table(
        self, record: EpisodeRecord, rows: list[int], names: list[str]
    ) -> dict[str, Any]:
        where = f"{self.root / record.data}, episode {record.index}"
        file = self._opened(self.root / record.data, FrameTable)
        columns = list(dict.fromkeys([*names, "episode_index"]))
        first, stop = record.row + min(rows), record.row + max(rows) + 1
        table = file.read(first, stop, columns, where)
        found = set(table["episode_index"].to_pylist())
        if found != {record.index}:
            raise DatasetError(f"{where}: rows {first} to {stop} belong to episodes {found}")
        if len(rows) != len(table) or rows != list(range(rows[0], rows[0] + len(rows))):
            table = table.take([row - min(rows) for row in rows])
        return {name: from_arrow(self.features[name], table[name], where) for name in names}

    def _read_video(self, record: EpisodeRecord, rows: list[int], name: str) -> np.ndarray:
        path, start = record.videos[name]
        where = f"episode {record.index}, feature '{name}'"
        file = self._opened(self.root / path, VideoFile)
        rate = float(rate_of(self.fps))
        frames = file.frames([start + row / rate for row in rows], self.fps, where)
        expected = self.features[name].picture_shape
        if frames.shape[1:] != expected:
            raise DatasetError(
                f"{where}: {self.root / path} has frames {frames.shape[1:]}; {expected} is declared"
            )
        return frames

    def _final(self, record: EpisodeRecord, names: Sequence[str]) -> dict[str, Any] | None:
        stored = self.metadata.final_observation(record)
        if not stored:
            return None
        where = f"{self.root}, episode {record.index}, final observation"
        final = {}
        for name, value in stored.items():
            feature = self.features.get(name)
            if feature is None or name not in names:
                continue
            if feature.is_picture:
                final[name] = decode_picture(value, feature, where)
            elif feature.dtype == "string":
                final[name] = value
            else:
                final[name] = np.asarray(value, dtype=feature.dtype).reshape(feature.shape)
        return final

    def _opened(self, path: Path, kind: Callable[[Path], File]) -> File:
        if path not in self._files:
            self._files[path] = kind(path)
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return self._files[path]  # type: ignore[return-value]
