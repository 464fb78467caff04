"""Adds whole episodes to the files of a dataset, or nothing; cuts off what was not committed.

An episode goes into the last table and the last video of each camera while those are below the
limits of the dataset, otherwise into new ones. New versions of all files are written beside the old
ones, then renamed, `meta/info.json` last: it says how many episodes there are.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.lerobot import layout
from rlinf.data.lerobot.errors import DatasetError, arrow
from rlinf.data.lerobot.features import Feature
from rlinf.data.lerobot.layout import FileSet, Place
from rlinf.data.lerobot.metadata import Info, Metadata, tasks_table
from rlinf.data.lerobot.statistics import Stats, merge_stats, number_stats, to_json
from rlinf.data.lerobot.tables import (
    encode_picture,
    frame_schema,
    make_table,
    open_parquet,
    row_groups,
    write_tables,
)
from rlinf.data.lerobot.video import Segment, join, rate_of, signature

_MB = 1024 * 1024
_EPISODES_TOGETHER, _BYTES_TOGETHER = 32, 8 * _MB


@dataclass
class PendingEpisode:
    """An episode that is not part of the dataset yet.

    Attributes:
        columns: Array `[T, *shape]`, or list of texts or PNG, of each feature that is given and
            not a video.
        tasks: Text of the task of each frame.
        videos: Encoded frames of each camera.
        stats: Statistics of pictures; those of numbers are computed.
        final: The observation after the last frame; None if it is not known.
    """

    columns: dict[str, Any]
    tasks: list[str]
    videos: dict[str, Segment] = field(default_factory=dict)
    stats: dict[str, Stats] = field(default_factory=dict)
    final: dict[str, Any] | None = None


@dataclass
class _OpenVideo:
    """The video of a camera that still grows."""

    place: Place
    frames: int
    signature: tuple


@dataclass
class _OpenTable:
    """The table of frames that still grows, kept so that it need not be read again.

    Small episodes share row groups: a file of many of them is written much faster.

    Attributes:
        groups: Row groups that stay as they are.
        loose: Later episodes, a row group each until there are enough of them.
    """

    groups: list[Any] = field(default_factory=list)
    loose: list[Any] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(table.num_rows for table in (*self.groups, *self.loose))

    def with_episode(self, table: Any) -> _OpenTable:
        """Return this table with one more episode."""
        loose = [*self.loose, table]
        if len(loose) < _EPISODES_TOGETHER:
            return _OpenTable(self.groups, loose)
        if sum(part.nbytes for part in loose) <= _BYTES_TOGETHER:
            loose = [arrow().concat_tables(loose).combine_chunks()]
        return _OpenTable([*self.groups, *loose], [])


class Committer:
    """Owns a dataset while it is written; there is one at a time."""

    def __init__(self, root: Path, final_observations: bool | None = None) -> None:
        """Take a dataset over, and cut off what an earlier writer did not commit.

        Args:
            root: Its folder, v3.0.
            final_observations: Keep observations after the last frame; None as the dataset has it.

        Raises:
            DatasetError: It is being written by another process, or is not valid.
        """
        self.root = root
        self._lock = os.open(root / "meta", os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._final = final_observations
            layout.clear_staging(root)
            self._open()
        except BlockingIOError as error:
            os.close(self._lock)
            raise DatasetError(f"{root} is being written by another process") from error
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        self.metadata = Metadata.load(self.root)
        info = self.info
        if info.version != layout.VERSION:
            raise DatasetError(
                f"{self.root} is {info.version}; only {layout.VERSION} is appended to. Convert it: "
                f"python -m rlinf.data.lerobot merge {self.root} --out FOLDER"
            )
        if info.data_path != layout.DATA or info.video_path not in (None, layout.VIDEO):
            raise DatasetError(
                f"{self.root / layout.INFO} names its files {info.data_path!r} and "
                f"{info.video_path!r}; only {layout.DATA!r} and {layout.VIDEO!r} are appended to"
            )
        recover(self.metadata)
        last = self.metadata.episodes[-1] if self.metadata.episodes else None
        self._last: dict[str, Place] = dict(last.places) if last else {}
        self._data = _OpenTable()
        self._meta_rows: Any = None
        self._videos: dict[str, _OpenVideo] = {}
        self._schema = self._stored_schema()
        self._damaged = False

    @property
    def info(self) -> Info:
        """What `meta/info.json` says."""
        return self.metadata.info

    @property
    def keeps_final_observations(self) -> bool:
        """Whether episodes hold the observation after their last frame."""
        if self._schema is not None:
            return any(name.startswith("final/") for name in self._schema.names)
        return bool(self._final)

    def close(self) -> None:
        """Let other processes write."""
        layout.clear_staging(self.root)
        os.close(self._lock)

    def commit(self, episode: PendingEpisode) -> int:
        """Add an episode.

        Returns:
            Its number.

        Raises:
            OSError: It cannot be written. The dataset is as before, and the episode may be given
                again.
        """
        if self._damaged:
            self._open()
        files = FileSet(self.root)
        try:
            done = self._write(files, episode)
        except BaseException:
            files.discard()
            raise
        try:
            files.publish()
        except BaseException:
            # Some files are new and some are not: look at the folder again before the next one.
            self._damaged = True
            files.discard()
            raise
        done()
        return self.info.total_episodes - 1

    def _write(self, files: FileSet, episode: PendingEpisode) -> Callable[[], None]:
        """Stage all files; return what to do once they are in place."""
        info, length = self.info, len(episode.tasks)
        number, start = info.total_episodes, info.total_frames
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": list(dict.fromkeys(episode.tasks)),
            "length": length,
            "dataset_from_index": start,
            "dataset_to_index": start + length,
        }
        videos = {}
        for key, segment in episode.videos.items():
            videos[key], entries = self._write_video(files, key, segment)
            row.update(entries)

        tasks = [*self.metadata.tasks]
        tasks += [task for task in row["tasks"] if task not in tasks]
        columns = {
            **episode.columns,
            "timestamp": (np.arange(length) / info.fps).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, number),
            "index": np.arange(start, start + length),
            "task_index": np.array([tasks.index(task) for task in episode.tasks]),
        }
        data_place, data = self._write_data(files, make_table(info.features, columns))
        row["data/chunk_index"], row["data/file_index"] = data_place
        if tasks != self.metadata.tasks:
            table = tasks_table(tasks)
            with files.new(layout.TASKS) as path:
                write_tables(path, [table], table.schema)

        stats = dict(episode.stats)
        for name, feature in info.features.items():
            if not feature.is_picture and feature.dtype != "string":
                stats[name] = number_stats(
                    np.asarray(columns[name]).reshape(length, *feature.shape)
                )
        meta_place, meta_rows = self._write_row(files, row, stats, episode.final)
        parts = [self.metadata.stats, stats] if self.metadata.stats else [stats]
        merged = merge_stats(parts)
        files.add_json(layout.STATS, to_json(merged))
        counts = {"total_episodes": number + 1, "total_frames": start + length}
        files.add_json(layout.INFO, {**info.to_json(len(tasks)), **counts} | _splits(number + 1))

        def done() -> None:
            self.metadata.tasks, self.metadata.stats = tasks, merged
            info.total_episodes, info.total_frames = number + 1, start + length
            self._data, self._meta_rows = data, meta_rows
            self._schema = meta_rows.schema
            self._videos.update(videos)
            self._last.update({"data": data_place, "meta": meta_place})
            self._last.update({key: video.place for key, video in videos.items()})

        return done

    def _next(self, kind: str) -> Place:
        last = self._last.get(kind)
        return (0, 0) if last is None else layout.next_place(last, self.info.chunks_size)

    def _write_data(self, files: FileSet, table: Any) -> tuple[Place, _OpenTable]:
        limit = self.info.data_files_size_in_mb * _MB
        old, place = self._data, self._last.get("data")
        if old.rows and place is not None:
            size = (self.root / _named(layout.DATA, place)).stat().st_size
            if size + size / old.rows * table.num_rows > limit:
                old = _OpenTable()
        if not old.rows:
            place = self._next("data")
        new = old.with_episode(table)
        with files.new(_named(layout.DATA, place)) as path:
            write_tables(path, [*new.groups, *new.loose], frame_schema(self.info.features))
        return place, new

    def _write_video(
        self, files: FileSet, key: str, segment: Segment
    ) -> tuple[_OpenVideo, dict[str, Any]]:
        limit = self.info.video_files_size_in_mb * _MB
        kind, current = signature(segment.path), self._videos.get(key)
        if current is not None:
            old = self.root / _named(layout.VIDEO, current.place, key)
            size = old.stat().st_size
            share = segment.frames / max(1, current.frames)
            grown = size + min(segment.path.stat().st_size, size * share)
            if grown > limit or current.signature != kind:
                current = None
        if current is None:
            place, before, segments = self._next(key), 0, [segment]
        else:
            place, before = current.place, current.frames
            segments = [Segment(old, 0.0, before), segment]
        with files.new(_named(layout.VIDEO, place, key)) as path:
            if not join(segments, path, self.info.fps):
                raise DatasetError(
                    f"{segment.path}, feature '{key}': frames from {segment.start:.3f} s on cannot "
                    "be copied; encode them again"
                )
        rate, after = rate_of(self.info.fps), before + segment.frames
        entries = {
            f"videos/{key}/chunk_index": place[0],
            f"videos/{key}/file_index": place[1],
            f"videos/{key}/from_timestamp": float(before / rate),
            f"videos/{key}/to_timestamp": float(after / rate),
        }
        return _OpenVideo(place, after, kind), entries

    def _write_row(
        self, files: FileSet, row: dict[str, Any], stats: dict[str, Stats], final: Any
    ) -> tuple[Place, Any]:
        """Stage the table of episodes with one more row."""
        pa = arrow()
        old = self._meta_rows
        if old is not None:
            path = self.root / _named(layout.EPISODES, self._last["meta"])
            if path.stat().st_size >= self.info.data_files_size_in_mb * _MB:
                old = None
        place = self._last["meta"] if old is not None else self._next("meta")
        row["meta/episodes/chunk_index"], row["meta/episodes/file_index"] = place
        for feature, values in stats.items():
            row.update({f"stats/{feature}/{name}": value for name, value in values.items()})
        arrays = {name: _cell(value) for name, value in row.items()}
        if self.keeps_final_observations:
            for feature in self.info.features.values():
                if feature.name.startswith("observation"):
                    value = None if final is None else final[feature.name]
                    arrays[f"final/{feature.name}"] = _final_cell(feature, value)
        if self._schema is not None:
            # Files of one dataset have one schema, also when another program began it.
            arrays = {
                name: arrays[name] if name in arrays else pa.nulls(1, kind)
                for name, kind in zip(self._schema.names, self._schema.types, strict=True)
            }
        table = pa.Table.from_pydict(arrays)
        if self._schema is not None:
            table = table.cast(self._schema)
        table = table if old is None else pa.concat_tables([old, table]).combine_chunks()
        with files.new(_named(layout.EPISODES, place)) as path:
            write_tables(path, [table], table.schema)
        return place, table

    def _stored_schema(self) -> Any:
        if not self.metadata.episodes:
            return None
        with open_parquet(self.root / _named(layout.EPISODES, self._last["meta"])) as file:
            return file.schema_arrow.remove_metadata()


def _splits(episodes: int) -> dict[str, Any]:
    return {"splits": {"train": f"0:{episodes}"}}


def _named(pattern: str, place: Place, key: str = "") -> str:
    return pattern.format(chunk_index=place[0], file_index=place[1], video_key=key)


def _cell(value: Any) -> Any:
    pa = arrow()
    if isinstance(value, np.ndarray):
        return pa.array([value.tolist()])
    return pa.array([value])


def _final_cell(feature: Feature, value: Any) -> Any:
    pa = arrow()
    if feature.is_picture:
        return pa.array([None if value is None else encode_picture(value)], pa.binary())
    if feature.dtype == "string":
        return pa.array([value], pa.string())
    kind = pa.bool_() if feature.dtype == "bool" else pa.from_numpy_dtype(np.dtype(feature.dtype))
    flat = None if value is None else np.asarray(value).reshape(-1).tolist()
    return pa.array([flat], pa.list_(kind))


def recover(metadata: Metadata) -> None:
    """Cut off what an earlier writer of a v3.0 dataset wrote but did not commit.

    Files after the last committed ones are deleted, and rows after the last committed ones are cut
    from the last tables. Readers ignore both, but a dataset that is appended to must not have them.
    """
    root, info = metadata.root, metadata.info
    last = metadata.episodes[-1] if metadata.episodes else None
    places = last.places if last else {}
    kinds = {"data": root / "data", "meta": root / "meta" / "episodes"}
    kinds.update({key: root / "videos" / key for key in info.videos})
    for kind, folder in kinds.items():
        for path in folder.glob("chunk-*/file-*.*"):
            numbers = re.fullmatch(r"chunk-(\d+)/file-(\d+)\.\w+", str(path.relative_to(folder)))
            if numbers and tuple(map(int, numbers.groups())) > places.get(kind, (-1, -1)):
                path.unlink()
    if last is None:
        return
    files = FileSet(root)
    rows = last.row + last.length
    data = root / last.data
    with open_parquet(data) as file:
        stored, schema = file.metadata.num_rows, file.schema_arrow
    if stored < rows:
        raise DatasetError(f"{data} has {stored} rows; episode {last.index} ends at row {rows}")
    if stored > rows:
        with files.new(last.data) as path:
            write_tables(path, row_groups(data, rows), schema)
    name = _named(layout.EPISODES, places["meta"])
    with open_parquet(root / name) as file:
        table = file.read()
    keep = np.asarray(table["episode_index"]) < info.total_episodes
    if not keep.all():
        with files.new(name) as path:
            write_tables(path, [table.filter(arrow().array(keep))], table.schema)
    files.publish()
