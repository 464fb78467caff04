"""Metadata of a dataset: the folders of both versions become one view, and v3.0 is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.lerobot import layout
from rlinf.data.lerobot.errors import DatasetError, arrow
from rlinf.data.lerobot.features import OWN, Feature, make_features
from rlinf.data.lerobot.layout import Place
from rlinf.data.lerobot.statistics import Stats, from_json, merge_stats
from rlinf.data.lerobot.tables import open_parquet


@dataclass
class Info:
    """What `meta/info.json` says.

    Attributes:
        version: Of the format, such as `v3.0`.
        fps: Frames per second.
        features: By name.
        robot_type: What was recorded, if that is known.
        total_episodes: Episodes that are part of the dataset.
        total_frames: Frames of all of them.
        chunks_size: Files in a folder.
        data_files_size_in_mb: A table is not grown beyond this.
        video_files_size_in_mb: A video is not grown beyond this.
        data_path: Pattern of the names of tables.
        video_path: Pattern of the names of videos; None without videos.
        others: Keys that are kept as they are.
    """

    version: str
    fps: float
    features: dict[str, Feature]
    robot_type: str | None = None
    total_episodes: int = 0
    total_frames: int = 0
    chunks_size: int = 1000
    data_files_size_in_mb: float = 100
    video_files_size_in_mb: float = 200
    data_path: str = layout.DATA
    video_path: str | None = None
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def videos(self) -> list[str]:
        """Names of the features that are kept as videos."""
        return [name for name, feature in self.features.items() if feature.dtype == "video"]

    def to_json(self, total_tasks: int) -> dict[str, Any]:
        """Return the content of `meta/info.json`, v3.0."""
        return {
            **self.others,
            "codebase_version": layout.VERSION,
            "robot_type": self.robot_type,
            "total_episodes": self.total_episodes,
            "total_frames": self.total_frames,
            "total_tasks": total_tasks,
            "chunks_size": self.chunks_size,
            "data_files_size_in_mb": self.data_files_size_in_mb,
            "video_files_size_in_mb": self.video_files_size_in_mb,
            "fps": int(self.fps) if float(self.fps).is_integer() else self.fps,
            "splits": {"train": f"0:{self.total_episodes}"},
            "data_path": self.data_path,
            "video_path": self.video_path,
            "features": {name: feature.to_json() for name, feature in self.features.items()},
        }


_KEYS = {
    *("codebase_version", "robot_type", "total_episodes", "total_frames", "total_tasks"),
    *("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "fps", "splits"),
    *("data_path", "video_path", "features", "total_videos", "total_chunks"),
}


@dataclass(frozen=True)
class EpisodeRecord:
    """Where one episode is.

    Attributes:
        index: Its number.
        length: Its frames.
        start: Number of its first frame in the dataset.
        tasks: Texts of its tasks.
        data: Its table, seen from the root.
        row: Its first row there.
        videos: File, seen from the root, and time of the first frame, for each camera.
        places: Chunk and file of the table ("data"), of the metadata ("meta") and of each camera.
    """

    index: int
    length: int
    start: int
    tasks: tuple[str, ...]
    data: str
    row: int
    videos: dict[str, tuple[str, float]]
    places: dict[str, Place] = field(default_factory=dict)


@dataclass
class Metadata:
    """All metadata of a dataset.

    Attributes:
        root: Its folder.
        info: What `meta/info.json` says.
        tasks: Texts; the number of a task is its position.
        episodes: In order.
        stats: Statistics by feature; empty if the dataset has none.
    """

    root: Path
    info: Info
    tasks: list[str]
    episodes: list[EpisodeRecord]
    stats: dict[str, Stats]
    _finals: tuple[Place, dict[int, dict[str, Any]]] | None = field(default=None, repr=False)

    @classmethod
    def load(cls, root: Path) -> Metadata:
        """Read the metadata of a folder.

        Raises:
            DatasetError: A file is missing, damaged, or does not fit the others.
        """
        info = read_info(root)
        if info.version == "v2.1":
            tasks, episodes = _tasks_v21(root), _episodes_v21(root, info)
        else:
            tasks, episodes = _tasks_v30(root, info), _episodes_v30(root, info)
        frames = sum(episode.length for episode in episodes)
        if len(episodes) != info.total_episodes or frames != info.total_frames:
            raise DatasetError(
                f"{root / layout.INFO} counts {info.total_episodes} episodes with "
                f"{info.total_frames} frames; {len(episodes)} with {frames} are described"
            )
        metadata = cls(root, info, tasks, episodes, {})
        path = root / layout.STATS
        if path.is_file():
            metadata.stats = from_json(layout.read_json(path))
        elif episodes:
            metadata.stats = merge_stats(metadata.episode_stats().values())
        return metadata

    def final_observation(self, record: EpisodeRecord) -> dict[str, Any]:
        """Return the observation after the last frame, as it is stored; empty if there is none."""
        if self.info.version == "v2.1":
            return {}
        place = record.places["meta"]
        if self._finals is None or self._finals[0] != place:
            chunk, file = place
            path = self.root / layout.EPISODES.format(chunk_index=chunk, file_index=file)
            found = {}
            for row in _rows(path, "final/"):
                values = {key.removeprefix("final/"): row[key] for key in row if "final/" in key}
                found[row["episode_index"]] = {
                    key: value for key, value in values.items() if value is not None
                }
            self._finals = (place, found)
        return self._finals[1].get(record.index, {})

    def episode_stats(self) -> dict[int, dict[str, Stats]]:
        """Read the statistics of each episode, by its number; empty if there are none."""
        if self.info.version == "v2.1":
            path = self.root / layout.V21_STATS
            rows = layout.read_json_lines(path) if path.is_file() else []
            return {int(row["episode_index"]): from_json(row["stats"]) for row in rows}
        found: dict[int, dict[str, Stats]] = {}
        for path in _episode_files(self.root):
            for row in _rows(path, "stats/"):
                stats: dict[str, Stats] = {}
                for key, value in row.items():
                    if key.startswith("stats/") and value is not None:
                        feature, _, name = key.removeprefix("stats/").rpartition("/")
                        stats.setdefault(feature, {})[name] = np.asarray(value)
                if stats and row["episode_index"] < self.info.total_episodes:
                    found[row["episode_index"]] = stats
        return found


def read_info(root: Path) -> Info:
    """Read `meta/info.json`.

    Raises:
        DatasetError: It is missing, damaged, or of a version that is not read.
    """
    path = root / layout.INFO
    raw = layout.read_json(path)
    if not isinstance(raw, dict):
        raise DatasetError(f"{path} holds {type(raw).__name__}; it must be a mapping")
    version = str(raw.get("codebase_version"))
    if version not in layout.READABLE:
        raise DatasetError(
            f"{path}: codebase_version is {version!r}; {' and '.join(layout.READABLE)} are read"
        )
    for key, kind in (("fps", (int, float)), ("features", dict), ("total_episodes", int)):
        if not isinstance(raw.get(key), kind) or isinstance(raw[key], bool):
            raise DatasetError(f"{path}: {key} is {raw.get(key)!r}, which is not valid")
    if raw["fps"] <= 0:
        raise DatasetError(f"{path}: fps is {raw['fps']}; it must be above 0")
    for key in ("data_path", "video_path"):
        if ".." in Path(raw.get(key) or "").parts or str(raw.get(key) or "").startswith("/"):
            raise DatasetError(f"{path}: {key} is {raw[key]!r}; it must stay inside the folder")
    return Info(
        version=version,
        fps=raw["fps"],
        features={**make_features(raw["features"], str(path)), **OWN},
        robot_type=raw.get("robot_type"),
        total_episodes=raw["total_episodes"],
        total_frames=raw.get("total_frames", 0),
        chunks_size=raw.get("chunks_size") or 1000,
        data_files_size_in_mb=raw.get("data_files_size_in_mb") or 100,
        video_files_size_in_mb=raw.get("video_files_size_in_mb") or 200,
        data_path=raw.get("data_path") or layout.DATA,
        video_path=raw.get("video_path"),
        others={key: value for key, value in raw.items() if key not in _KEYS},
    )


def _episode_files(root: Path) -> list[Path]:
    return sorted((root / "meta" / "episodes").glob("chunk-*/file-*.parquet"))


def _rows(path: Path, *prefixes: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of episodes.

    Args:
        path: The file.
        *prefixes: Also read columns under `stats/` or `final/`, which are large.
    """
    with open_parquet(path) as file:
        names = [
            name
            for name in file.schema_arrow.names
            if not name.startswith(("stats/", "final/")) or name.startswith(prefixes)
        ]
        try:
            yield from file.read(columns=names).to_pylist()
        except (OSError, arrow().ArrowException) as error:
            raise DatasetError(f"{path} is damaged: {error}") from error


def _tasks_v30(root: Path, info: Info) -> list[str]:
    path = root / layout.TASKS
    if not path.is_file() and info.total_episodes == 0:
        return []
    with open_parquet(path) as file:
        table = file.read()
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(texts) != 1:
        raise DatasetError(
            f"{path} has the columns {', '.join(table.column_names)}; it needs task_index and task"
        )
    pairs = zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True)
    return _in_order(dict(pairs), path)


def _tasks_v21(root: Path) -> list[str]:
    path = root / layout.V21_TASKS
    rows = layout.read_json_lines(path)
    return _in_order({row["task_index"]: row["task"] for row in rows}, path)


def _in_order(tasks: Mapping[int, str], path: Path) -> list[str]:
    if sorted(tasks) != list(range(len(tasks))):
        raise DatasetError(f"{path}: tasks are numbered {sorted(tasks)}; 0, 1, ... is expected")
    return [tasks[number] for number in range(len(tasks))]


def _episodes_v30(root: Path, info: Info) -> list[EpisodeRecord]:
    rows: dict[int, dict[str, Any]] = {}
    for path in _episode_files(root):
        for row in _rows(path):
            number = row.get("episode_index")
            if number is None:
                raise DatasetError(f"{path} has no column episode_index")
            # An episode beyond the count was not committed.
            if number < info.total_episodes:
                rows[number] = row
    absent = [number for number in range(info.total_episodes) if number not in rows]
    if absent:
        raise DatasetError(
            f"{root / 'meta/episodes'} does not describe episode {absent[0]}; "
            f"{root / layout.INFO} counts {info.total_episodes}"
        )
    first: dict[Place, int] = {}
    for row in rows.values():
        place = (row["data/chunk_index"], row["data/file_index"])
        start = row["dataset_from_index"]
        first[place] = min(first.get(place, start), start)
    return [_record_v30(root, info, rows[number], first) for number in range(len(rows))]


def _record_v30(
    root: Path, info: Info, row: dict[str, Any], first: Mapping[Place, int]
) -> EpisodeRecord:
    places = {
        "data": (row["data/chunk_index"], row["data/file_index"]),
        "meta": (row.get("meta/episodes/chunk_index", 0), row.get("meta/episodes/file_index", 0)),
    }
    videos = {}
    for key in info.videos:
        found = [row.get(f"videos/{key}/{name}") for name in ("chunk_index", "file_index")]
        if None in found or info.video_path is None:
            raise DatasetError(
                f"{root / 'meta/episodes'}, episode {row['episode_index']}, feature '{key}': "
                "it is not said in which file the video is"
            )
        places[key] = (found[0], found[1])
        path = info.video_path.format(video_key=key, chunk_index=found[0], file_index=found[1])
        videos[key] = (path, float(row[f"videos/{key}/from_timestamp"]))
    chunk, file = places["data"]
    start = row["dataset_from_index"]
    return EpisodeRecord(
        index=row["episode_index"],
        length=row["length"],
        start=start,
        tasks=tuple(row["tasks"]),
        data=info.data_path.format(chunk_index=chunk, file_index=file),
        row=start - first[places["data"]],
        videos=videos,
        places=places,
    )


def _episodes_v21(root: Path, info: Info) -> list[EpisodeRecord]:
    path = root / layout.V21_EPISODES
    rows = sorted(layout.read_json_lines(path), key=lambda row: row["episode_index"])
    records, start = [], 0
    for number, row in enumerate(rows):
        if row["episode_index"] != number:
            raise DatasetError(f"{path} does not describe episode {number}")
        names = {"episode_chunk": number // info.chunks_size, "episode_index": number}
        videos = {
            key: ((info.video_path or "").format(video_key=key, **names), 0.0)
            for key in info.videos
        }
        data = info.data_path.format(**names)
        tasks = tuple(row["tasks"])
        records.append(EpisodeRecord(number, row["length"], start, tasks, data, 0, videos))
        start += row["length"]
    return records


def tasks_table(tasks: list[str]) -> Any:
    """Return `meta/tasks.parquet`: the text is the index of a pandas table, as lerobot reads it."""
    pa = arrow()
    columns = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": numpy_type,
            "metadata": None,
        }
        for name, kind, numpy_type in (
            ("task_index", "int64", "int64"),
            ("task", "unicode", "object"),
        )
    ]
    label = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [{**label, "metadata": {"encoding": "UTF-8"}}],
        "columns": columns,
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    schema = pa.schema(
        [("task_index", pa.int64()), ("task", pa.string())],
        metadata={"pandas": json.dumps(pandas)},
    )
    return pa.Table.from_arrays(
        [pa.array(range(len(tasks)), pa.int64()), pa.array(tasks, pa.string())], schema=schema
    )
