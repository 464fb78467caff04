"""Version 2.1 is read: one table and one video per episode, metadata as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

import av  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from rlinf.data.lerobot import DatasetError, DatasetWriter, LeRobotDataset, merge  # noqa: E402
from tests.unit_tests.data.lerobot.conftest import picture  # noqa: E402

CAMERA = "observation.images.front"
LENGTHS = [4, 6, 3]
FPS = 20


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _video(path: Path, episode: int, length: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        # With the defaults of the encoder: key frames far apart, frames out of order.
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(length):
            image = av.VideoFrame.from_ndarray(picture(episode, number, 48, 64), format="rgb24")
            container.mux(stream.encode(image))
        container.mux(stream.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "v21"
    (root / "meta").mkdir(parents=True)
    scalar = {"shape": [1], "names": None}
    info = {
        "codebase_version": "v2.1",
        "robot_type": "so100",
        "total_episodes": 3,
        "total_frames": 13,
        "total_tasks": 2,
        "total_videos": 3,
        "total_chunks": 2,
        "chunks_size": 2,
        "fps": FPS,
        "splits": {"train": "0:3"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/"
        "episode_{episode_index:06d}.mp4",
        "features": {
            "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
            "observation.state": {"dtype": "float32", "shape": [3], "names": None},
            CAMERA: {
                "dtype": "video",
                "shape": [48, 64, 3],
                "names": ["height", "width", "channels"],
                "info": {"video.fps": 20.0, "video.codec": "h264"},
            },
            "timestamp": {"dtype": "float32", **scalar},
            "frame_index": {"dtype": "int64", **scalar},
            "episode_index": {"dtype": "int64", **scalar},
            "index": {"dtype": "int64", **scalar},
            "task_index": {"dtype": "int64", **scalar},
        },
    }
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    _lines(root / "meta/tasks.jsonl", [{"task_index": i, "task": f"task {i}"} for i in range(2)])
    described, statistics, start = [], [], 0
    for episode, length in enumerate(LENGTHS):
        actions = np.arange(2 * length, dtype=np.float32).reshape(length, 2) + 100 * episode
        table = {
            "action": actions.tolist(),
            "observation.state": (np.ones((length, 3)) * episode).tolist(),
            "timestamp": (np.arange(length) / FPS).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
            "index": np.arange(start, start + length),
            "task_index": np.full(length, episode % 2),
        }
        path = root / f"data/chunk-{episode // 2:03d}/episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        types = {"action": pa.list_(pa.float32()), "observation.state": pa.list_(pa.float32())}
        columns = {name: pa.array(values, types.get(name)) for name, values in table.items()}
        pq.write_table(pa.table(columns), path)
        name = f"videos/chunk-{episode // 2:03d}/{CAMERA}/episode_{episode:06d}.mp4"
        _video(root / name, episode, length)
        described.append(
            {"episode_index": episode, "tasks": [f"task {episode % 2}"], "length": length}
        )
        stats = {
            "min": actions.min(0).tolist(),
            "max": actions.max(0).tolist(),
            "mean": actions.mean(0).tolist(),
            "std": actions.std(0).tolist(),
            "count": [length],
        }
        statistics.append({"episode_index": episode, "stats": {"action": stats}})
        start += length
    _lines(root / "meta/episodes.jsonl", described)
    _lines(root / "meta/episodes_stats.jsonl", statistics)
    return root


def check(dataset: LeRobotDataset) -> None:
    assert (dataset.num_episodes, len(dataset), dataset.fps) == (3, 13, FPS)
    assert dataset.tasks == ["task 0", "task 1"]
    for index, length in enumerate(LENGTHS):
        episode = dataset.episode(index)
        expected = np.arange(2 * length).reshape(length, 2) + 100 * index
        assert np.array_equal(episode.values["action"], expected)
        assert episode.tasks == [f"task {index % 2}"] * length
        for number in range(length):
            seen = episode.values[CAMERA][number].astype(int)
            assert np.abs(seen - picture(index, number, 48, 64)).mean() < 4, (index, number)


def test_it_is_read(folder: Path) -> None:
    dataset = LeRobotDataset(folder, delta_timestamps={"action": [0.0, 0.05]})
    check(dataset)
    item = dataset[9]
    assert item["action"].tolist() == [[110.0, 111.0]] * 2
    assert item["action_is_pad"].tolist() == [False, True]
    assert item["task"] == "task 1"
    every = np.concatenate([dataset.episode(i).values["action"] for i in range(3)])
    assert np.allclose(dataset.stats["action"]["mean"], every.mean(0))
    assert np.allclose(dataset.stats["action"]["std"], every.std(0), rtol=1e-5)


def test_it_is_converted_and_not_appended_to(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is v2.1; only v3.0 is appended to. Convert it"):
        DatasetWriter.append(folder)
    merge([folder], tmp_path / "v30")
    converted = LeRobotDataset(tmp_path / "v30")
    assert converted.metadata.info.version == "v3.0"
    check(converted)
    with DatasetWriter.append(tmp_path / "v30") as writer:
        frame = {"action": [0, 0], "observation.state": [0, 0, 0], CAMERA: picture(0, 0, 48, 64)}
        writer.add_frame(frame, "task 2")
        assert writer.save_episode() == 3


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "data/chunk-001/episode_000002.parquet").unlink()
    with pytest.raises(DatasetError, match="chunk-001/episode_000002.parquet is missing"):
        LeRobotDataset(folder).episode(2)
    _lines(folder / "meta/episodes.jsonl", [{"episode_index": 1, "tasks": [], "length": 3}])
    with pytest.raises(DatasetError, match="episodes.jsonl does not describe episode 0"):
        LeRobotDataset(folder)
    (folder / "meta/episodes.jsonl").write_text("{")
    with pytest.raises(DatasetError, match="episodes.jsonl, line 1 is not JSON"):
        LeRobotDataset(folder)
