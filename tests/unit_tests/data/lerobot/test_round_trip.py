"""What is written is what is read, for every kind of feature."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

from rlinf.data.lerobot import DatasetError, DatasetWriter, LeRobotDataset  # noqa: E402
from tests.unit_tests.data.lerobot.conftest import FEATURES, FPS, NUMBERS, add, frame  # noqa: E402

EXACT = [name for name, feature in FEATURES.items() if feature["dtype"] != "video"]
CODEC_TOLERANCE = 10


def assert_episode(dataset: LeRobotDataset, index: int, made: int, length: int) -> None:
    """Compares an episode of a dataset with the one that `add` makes."""
    episode = dataset.episode(index)
    assert episode.length == length
    for number in range(length):
        expected = frame(made, number, length)
        for name in EXACT:
            got = episode.values[name][number]
            assert np.array_equal(got, np.asarray(expected[name]).reshape(np.shape(got))), name
        seen = episode.values["observation.images.top"][number].astype(int)
        difference = np.abs(seen - expected["observation.images.top"])
        assert difference.max() <= CODEC_TOLERANCE, (number, difference.max())


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_every_kind_of_feature(make: Callable[..., Path], codec: str) -> None:
    lengths = [7, 1, 5]
    dataset = LeRobotDataset(make(lengths, codec=codec))
    assert (dataset.num_episodes, len(dataset), dataset.fps) == (3, 13, FPS)
    for index, length in enumerate(lengths):
        assert_episode(dataset, index, index, length)
    kinds = {name: getattr(v, "dtype", None) for name, v in dataset.episode(0).values.items()}
    assert kinds["observation.state"] == kinds["next.reward"] == np.float32
    assert kinds["counts"] == np.int64 and kinds["flags"] == np.bool_
    assert kinds["observation.images.wrist"] == np.uint8
    assert dataset.episode(0).values["counts"].shape == (7, 2, 3)
    assert dataset.episode(0).values["observation.images.wrist"].shape == (7, 16, 20, 3)


def test_own_features_and_tasks(make: Callable[..., Path]) -> None:
    dataset = LeRobotDataset(make([3, 2, 2], features=NUMBERS))
    assert dataset.tasks == ["task 0", "task 1"]
    second = dataset.episode(1)
    assert second.tasks == ["task 1"] * 2
    assert second.values["index"].tolist() == [3, 4]
    assert second.values["frame_index"].tolist() == [0, 1]
    assert second.values["episode_index"].tolist() == [1, 1]
    assert second.values["timestamp"].tolist() == pytest.approx([0.0, 0.1])
    assert dataset.episode(2).values["task_index"].tolist() == [0, 0]


def test_frames_in_any_order_are_the_exact_frames(make: Callable[..., Path]) -> None:
    lengths = [12, 9]
    dataset = LeRobotDataset(make(lengths))
    order = np.random.default_rng(0).permutation(len(dataset))
    for index in order.tolist():
        episode, number = (0, index) if index < 12 else (1, index - 12)
        item = dataset[index]
        expected = frame(episode, number, lengths[episode])
        # Reds of neighbouring frames differ by 12, those of the same frame by less than half of it.
        red = item["observation.images.top"][..., 0].mean()
        assert abs(red - expected["observation.images.top"][..., 0].mean()) < 4, index
        assert np.array_equal(item["observation.state"], expected["observation.state"])
        assert item["task"] == f"task {episode}"
    assert np.array_equal(dataset[-1]["action"], dataset[len(dataset) - 1]["action"])
    with pytest.raises(IndexError, match="21 frames; 21 is not"):
        dataset[21]


def test_windows_stop_at_the_ends_of_the_episode(make: Callable[..., Path]) -> None:
    windows = {"action": [0.0, 0.1, 0.2], "observation.images.top": [-0.1, 0.0]}
    dataset = LeRobotDataset(make([5, 5]), delta_timestamps=windows)
    actions = dataset.episode(0, ["action"]).values["action"]
    item = dataset[3]
    assert np.array_equal(item["action"], actions[[3, 4, 4]])
    assert item["action_is_pad"].tolist() == [False, False, True]
    first = dataset[5]
    assert first["observation.images.top"].shape == (2, 48, 64, 3)
    assert first["observation.images.top_is_pad"].tolist() == [True, False]
    top = first["observation.images.top"]
    assert np.array_equal(top[0], top[1])


def test_a_window_between_frames_is_refused(make: Callable[..., Path]) -> None:
    folder = make([2], features=NUMBERS)
    with pytest.raises(DatasetError, match=r"'action'.*\[0.05\].*multiples of 1/10 s"):
        LeRobotDataset(folder, delta_timestamps={"action": [0.05]})
    with pytest.raises(DatasetError, match="no feature 'acton'.*action"):
        LeRobotDataset(folder, delta_timestamps={"acton": [0.0]})


def test_a_dataset_can_be_sent_to_another_process(make: Callable[..., Path]) -> None:
    dataset = LeRobotDataset(make([3]))
    before = dataset[1]
    again = pickle.loads(pickle.dumps(dataset))[1]
    assert np.array_equal(before["observation.images.top"], again["observation.images.top"])


def test_nested_values(make: Callable[..., Path]) -> None:
    tree = LeRobotDataset(make([2])).episode(0).nested()
    assert tree["observation"]["images"]["wrist"].shape == (2, 16, 20, 3)
    assert tree["next"]["reward"].tolist() == [[0.0], [1.0]]


def test_the_action_is_stored_as_it_was_executed(tmp_path: Path) -> None:
    features = {"action": {"dtype": "float32", "shape": (2,)}}
    bounds = {"action": (np.array([-1, -2]), np.array([1, 2]))}
    with DatasetWriter.create(tmp_path / "d", FPS, features, clip=bounds) as writer:
        writer.add_frame({"action": np.array([5.0, -5.0])}, "reach")
        writer.add_frame({"action": np.array([0.5, 1.5])}, "reach")
        writer.save_episode()
    actions = LeRobotDataset(tmp_path / "d").episode(0).values["action"]
    assert actions.tolist() == [[1.0, -2.0], [0.5, 1.5]]
    with pytest.raises(DatasetError, match="clip names 'acton'"):
        DatasetWriter.append(tmp_path / "d", clip={"acton": (0, 1)})


def test_append(make: Callable[..., Path]) -> None:
    folder = make([4, 3])
    with DatasetWriter.append(folder) as writer:
        assert writer.num_episodes == 2
        add(writer, 2, 6, "a new task")
        assert writer.save_episode() == 2
    dataset = LeRobotDataset(folder)
    assert dataset.tasks == ["task 0", "task 1", "a new task"]
    for index, length in enumerate([4, 3, 6]):
        assert_episode(dataset, index, index, length)
    assert dataset.stats["action"]["count"].tolist() == [13]


def test_files_roll_over_at_their_limits(make: Callable[..., Path]) -> None:
    limits = {"data_files_size_in_mb": 0.01, "video_files_size_in_mb": 0.004, "chunks_size": 2}
    folder = make([6] * 8, **limits)
    tables = sorted(folder.glob("data/*/*.parquet"))
    videos = sorted(folder.glob("videos/*/*/*.mp4"))
    assert len(tables) > 2 and len(videos) > 2
    assert all(len(list(chunk.iterdir())) <= 2 for chunk in folder.glob("data/chunk-*"))
    assert (folder / "data" / "chunk-001" / "file-000.parquet") in tables
    dataset = LeRobotDataset(folder)
    for index in range(8):
        assert_episode(dataset, index, index, 6)


def test_many_episodes_share_files(make: Callable[..., Path]) -> None:
    folder = make([3] * 6)
    files = [path for path in folder.rglob("*") if path.suffix in (".parquet", ".mp4")]
    assert len(files) == 4, files  # one table, one video, the tasks and the episodes


def test_the_metadata_of_the_format(make: Callable[..., Path]) -> None:
    folder = make([3, 2])
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["fps"] == FPS
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (2, 5, 2)
    assert info["splits"] == {"train": "0:2"}
    camera = info["features"]["observation.images.top"]
    assert camera["info"]["video.codec"] == "h264" and camera["info"]["video.fps"] == FPS
    assert info["features"]["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}

    import pyarrow.parquet as pq

    rows = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["dataset_from_index"] for row in rows] == [0, 3]
    assert [row["dataset_to_index"] for row in rows] == [3, 5]
    key = "videos/observation.images.top"
    assert [row[f"{key}/from_timestamp"] for row in rows] == pytest.approx([0.0, 0.3])
    assert [row[f"{key}/to_timestamp"] for row in rows] == pytest.approx([0.3, 0.5])
    assert rows[1]["stats/action/count"] == [2]
    schema = pq.read_schema(folder / "data/chunk-000/file-000.parquet")
    assert str(schema.field("action").type) == "fixed_size_list<element: float>[2]"
    assert pq.ParquetFile(folder / "data/chunk-000/file-000.parquet").num_row_groups == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": np.zeros(3)}, r"episode 0, frame 1, feature 'action': shape \(3,\)"),
        ({"action": np.array([np.nan, 0])}, "feature 'action': NaN or infinity"),
        ({"action": np.array([1e300, 0])}, "feature 'action': 1e.300 does not fit float32"),
        ({"counts": np.full((2, 3), 0.5)}, "feature 'counts':.*0.5.*does not fit int64"),
        ({"note": 3}, "feature 'note': int was given; it holds texts"),
        (
            {"observation.images.top": np.zeros((48, 64, 3))},
            "float64 was given; pictures are uint8",
        ),
        (
            {"observation.images.wrist": np.zeros((9, 9, 3), np.uint8)},
            r"shape \(9, 9, 3\) was given; it is \(16, 20, 3\)",
        ),
        ({"typo": 1}, "unknown features: typo"),
    ],
)
def test_a_frame_that_does_not_fit_changes_nothing(
    tmp_path: Path, change: dict, message: str
) -> None:
    with DatasetWriter.create(tmp_path / "d", FPS, FEATURES) as writer:
        writer.add_frame(frame(0, 0, 2), "reach")
        with pytest.raises(DatasetError, match=message):
            writer.add_frame({**frame(0, 1, 2), **change}, "reach")
        writer.add_frame(frame(0, 1, 2), "reach")
        writer.save_episode()
    assert_episode(LeRobotDataset(tmp_path / "d"), 0, 0, 2)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": {"dtype": "complex64", "shape": [1]}}, "feature 'x': dtype 'complex64' is none of"),
        ({"x": {"dtype": "float32"}}, "feature 'x'.*needs dtype and shape"),
        ({"x": {"dtype": "float32", "shape": [0]}}, "feature 'x': shape .* positive"),
        ({"a/b": {"dtype": "float32", "shape": [1]}}, "'a/b': a name must not have '/'"),
        ({"index": {"dtype": "int64", "shape": [1]}}, "feature 'index': the writer fills it in"),
        ({"x": {"dtype": "video", "shape": [1, 8, 8], "names": ["c", "h", "w"]}}, "a video has 3"),
    ],
)
def test_features_that_are_not_possible(tmp_path: Path, features: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        DatasetWriter.create(tmp_path / "d", FPS, features)
    assert not (tmp_path / "d").exists()


def test_one_writer_at_a_time(make: Callable[..., Path]) -> None:
    folder = make([1], features=NUMBERS)
    with DatasetWriter.append(folder):
        with pytest.raises(DatasetError, match="written by another process"):
            DatasetWriter.append(folder)
    DatasetWriter.append(folder).close()
    with pytest.raises(DatasetError, match="is there already"):
        DatasetWriter.create(folder, FPS, NUMBERS)


def test_a_folder_of_the_hub_cache_and_a_name(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make([2], features=NUMBERS)
    cached = tmp_path / "hub" / "datasets--me--reach"
    (cached / "snapshots").mkdir(parents=True)
    folder.rename(cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    assert len(LeRobotDataset(cached)) == 2
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert len(LeRobotDataset("me/reach")) == 2
    with pytest.raises(DatasetError, match="me/other is not a LeRobot dataset.*hf download"):
        LeRobotDataset("me/other")
