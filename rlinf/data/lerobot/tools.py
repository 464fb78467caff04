"""Says what is in a dataset, and makes new ones from episodes of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.lerobot import layout
from rlinf.data.lerobot.commit import PendingEpisode
from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.features import OWN, Feature
from rlinf.data.lerobot.metadata import EpisodeRecord
from rlinf.data.lerobot.reader import LeRobotDataset
from rlinf.data.lerobot.statistics import PictureStats, Stats
from rlinf.data.lerobot.tables import encode_picture
from rlinf.data.lerobot.video import Segment, VideoEncoder, join
from rlinf.data.lerobot.writer import DatasetWriter


def summarize(source: str | Path) -> dict[str, Any]:
    """Return what a dataset holds, as plain data: version, sizes, tasks, features.

    Args:
        source: As `LeRobotDataset` takes it.
    """
    dataset = LeRobotDataset(source)
    info, records = dataset.metadata.info, dataset.metadata.episodes
    lengths = [record.length for record in records]
    files = [path for path in dataset.root.rglob("*") if path.is_file()]
    by_task = {task: sum(task in record.tasks for record in records) for task in dataset.tasks}
    return {
        "root": str(dataset.root),
        "version": info.version,
        "robot_type": info.robot_type,
        "fps": info.fps,
        "episodes": len(records),
        "frames": len(dataset),
        "seconds": len(dataset) / info.fps,
        "episode_length": {"min": min(lengths), "max": max(lengths)} if lengths else None,
        "bytes": sum(path.stat().st_size for path in files),
        "files": len(files),
        "tasks": by_task,
        "features": {
            name: {"dtype": feature.dtype, "shape": list(feature.shape)}
            for name, feature in info.features.items()
        },
    }


@dataclass(frozen=True)
class _Piece:
    """Frames `start` to `stop` of an episode of a dataset."""

    dataset: LeRobotDataset
    record: EpisodeRecord
    start: int
    stop: int


def merge(sources: Sequence[str | Path], out: str | Path, **limits: Any) -> Path:
    """Write the episodes of several datasets into a new one, v3.0.

    With one source, this converts v2.1 to v3.0, and joins small files. Videos are copied without
    being encoded again where their key frames allow it.

    Args:
        sources: Datasets with the same features and frames per second.
        out: Folder of the new one.
        **limits: `chunks_size`, `data_files_size_in_mb`, `video_files_size_in_mb`, `codec`, as in
            `DatasetWriter.create`.

    Raises:
        DatasetError: The datasets do not fit.
    """
    datasets = [LeRobotDataset(source) for source in sources]
    if not datasets:
        raise DatasetError("no dataset was given to merge")
    for other in datasets[1:]:
        _check_alike(datasets[0], other)
    pieces = [
        _Piece(dataset, record, 0, record.length)
        for dataset in datasets
        for record in dataset.metadata.episodes
    ]
    return _write(datasets, pieces, Path(out), limits)


def select(source: str | Path, out: str | Path, episodes: Sequence[int], **limits: Any) -> Path:
    """Write some episodes of a dataset into a new one, in the order that is given.

    Args:
        source: The dataset.
        out: Folder of the new one.
        episodes: Numbers of the episodes.
        **limits: As in `merge`.

    Raises:
        DatasetError: There is no such episode, or none was named.
    """
    dataset = LeRobotDataset(source)
    pieces = []
    for number in episodes:
        record = _record(dataset, number)
        pieces.append(_Piece(dataset, record, 0, record.length))
    return _write([dataset], pieces, Path(out), limits)


def trim(
    source: str | Path, out: str | Path, frames: Mapping[int, tuple[int, int]], **limits: Any
) -> Path:
    """Write a dataset into a new one, with some episodes cut.

    Args:
        source: The dataset.
        out: Folder of the new one.
        frames: For the number of an episode, its first frame that is kept, and the one after its
            last. Where frames at the end are cut, the next one becomes the final observation, in
            datasets that keep it.
        **limits: As in `merge`.

    Raises:
        DatasetError: There is no such episode, or nothing of it is left.
    """
    dataset = LeRobotDataset(source)
    for number, (start, stop) in frames.items():
        length = _record(dataset, number).length
        if not 0 <= start < stop <= length:
            raise DatasetError(
                f"{dataset.root}, episode {number}: frames {start} to {stop} were given; it has "
                f"frames 0 to {length}"
            )
    pieces = [
        _Piece(dataset, record, *frames.get(record.index, (0, record.length)))
        for record in dataset.metadata.episodes
    ]
    return _write([dataset], pieces, Path(out), limits)


def _record(dataset: LeRobotDataset, number: int) -> EpisodeRecord:
    if not 0 <= number < dataset.num_episodes:
        raise DatasetError(
            f"{dataset.root} has episodes 0 to {dataset.num_episodes - 1}; {number} was given"
        )
    return dataset.metadata.episodes[number]


def _check_alike(first: LeRobotDataset, other: LeRobotDataset) -> None:
    if first.fps != other.fps:
        raise DatasetError(
            f"{other.root} has {other.fps:g} frames per second, {first.root} {first.fps:g}"
        )
    for name in {**first.features, **other.features}:
        ours, theirs = first.features.get(name), other.features.get(name)
        if (
            ours is None
            or theirs is None
            or (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape)
        ):
            raise DatasetError(
                f"feature '{name}' is {_kind(ours)} in {first.root} and {_kind(theirs)} in "
                f"{other.root}; datasets that are merged have the same features"
            )


def _kind(feature: Feature | None) -> str:
    return "absent" if feature is None else f"{feature.dtype} {list(feature.shape)}"


def _write(
    datasets: list[LeRobotDataset], pieces: list[_Piece], out: Path, limits: dict[str, Any]
) -> Path:
    if not pieces:
        raise DatasetError(f"no episode was given for {out}")
    first = datasets[0]
    info = first.metadata.info
    keeps = {_keeps_final(dataset) for dataset in datasets}
    features = {
        name: feature.to_json() for name, feature in info.features.items() if name not in OWN
    }
    sizes = {
        "chunks_size": info.chunks_size,
        "data_files_size_in_mb": info.data_files_size_in_mb,
        "video_files_size_in_mb": info.video_files_size_in_mb,
    }
    stats = {id(dataset): dataset.metadata.episode_stats() for dataset in datasets}
    with DatasetWriter.create(
        out,
        first.fps,
        features,
        robot_type=info.robot_type,
        final_observations=True in keeps,
        **{**sizes, **limits},
    ) as writer:
        for piece in pieces:
            known = stats[id(piece.dataset)].get(piece.record.index, {})
            writer.save_copy(_pending(piece, known, out, limits.get("codec", "h264")))
    return out


def _keeps_final(dataset: LeRobotDataset) -> bool:
    return any(dataset.metadata.final_observation(r) for r in dataset.metadata.episodes[:1])


def _pending(piece: _Piece, known: Mapping[str, Stats], out: Path, codec: str) -> PendingEpisode:
    dataset, record = piece.dataset, piece.record
    features = {n: f for n, f in dataset.features.items() if n not in OWN}
    whole = (piece.start, piece.stop) == (0, record.length)
    episode = dataset.episode(
        record.index, [name for name, feature in features.items() if feature.dtype != "video"]
    )
    columns: dict[str, Any] = {}
    stats: dict[str, Stats] = {}
    for name, values in episode.values.items():
        kept = values[piece.start : piece.stop]
        if features[name].dtype == "image":
            stats[name] = known[name] if whole and name in known else _picture_stats(kept)
            columns[name] = [encode_picture(picture) for picture in kept]
        else:
            columns[name] = kept
    videos = {}
    for name, feature in features.items():
        if feature.dtype == "video":
            frames = _Frames(piece, name)
            videos[name] = _segment(piece, feature, frames, out, codec)
            stats[name] = known[name] if whole and name in known else _picture_stats(frames())
    return PendingEpisode(
        columns, episode.tasks[piece.start : piece.stop], videos, stats, _final(piece)
    )


class _Frames:
    """Decodes the frames of a piece once, when they are needed."""

    def __init__(self, piece: _Piece, name: str) -> None:
        self._piece, self._name, self._pictures = piece, name, None

    def __call__(self) -> np.ndarray:
        if self._pictures is None:
            piece = self._piece
            values = piece.dataset.episode(piece.record.index, [self._name]).values[self._name]
            self._pictures = values[piece.start : piece.stop]
        return self._pictures


def _picture_stats(pictures: np.ndarray) -> Stats:
    stats = PictureStats(pictures.shape[-1])
    for picture in pictures:
        stats.add(picture)
    return stats.result()


def _segment(
    piece: _Piece, feature: Feature, frames: Callable[[], np.ndarray], out: Path, codec: str
) -> Segment:
    """Return encoded frames of a camera: those of the source, or encoded again."""
    path, start = piece.record.videos[feature.name]
    fps = piece.dataset.fps
    length = piece.stop - piece.start
    segment = Segment(piece.dataset.root / path, start + piece.start / fps, length)
    staged = out / layout.STAGING / "videos" / f"{feature.name}.mp4"
    staged.parent.mkdir(parents=True, exist_ok=True)
    if join([segment], staged, fps):
        return Segment(staged, 0.0, length)
    encoder = VideoEncoder(staged, feature, fps, codec, queue_frames=32)
    for picture in frames():
        encoder.put(picture)
    encoder.finish()
    return Segment(staged, 0.0, length)


def _final(piece: _Piece) -> dict[str, Any] | None:
    dataset, record = piece.dataset, piece.record
    if not _keeps_final(dataset):
        return None
    names = [name for name in dataset.features if name.startswith("observation")]
    if piece.stop == record.length:
        return dataset.episode(record.index, names).final_observation
    episode = dataset.episode(record.index, names)
    return {name: episode.values[name][piece.stop] for name in names}
