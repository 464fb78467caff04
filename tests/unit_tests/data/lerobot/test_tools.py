"""Datasets from episodes of others, and the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

from rlinf.data.lerobot import (  # noqa: E402
    DatasetError,
    DatasetWriter,
    LeRobotDataset,
    merge,
    select,
    summarize,
    trim,
)
from rlinf.data.lerobot.__main__ import main  # noqa: E402
from tests.unit_tests.data.lerobot.conftest import FEATURES, FPS, NUMBERS, add, frame  # noqa: E402
from tests.unit_tests.data.lerobot.test_round_trip import assert_episode  # noqa: E402


def test_merge_copies_every_episode(make: Callable[..., Path], tmp_path: Path) -> None:
    first, second = make([4, 3], "a"), make([2, 5, 6], "b", codec="av1")
    merged = LeRobotDataset(merge([first, second], tmp_path / "out"))
    expected = [(0, 4), (1, 3), (0, 2), (1, 5), (2, 6)]
    assert merged.num_episodes == 5
    for index, (made, length) in enumerate(expected):
        assert_episode(merged, index, made, length)
    assert merged.tasks == ["task 0", "task 1"]
    assert merged.stats["action"]["count"].tolist() == [20]
    # A video of one codec cannot be joined with one of another.
    assert len(list((tmp_path / "out").glob("videos/*/*/*.mp4"))) == 2
    assert not (tmp_path / "out" / ".staging").exists()


def test_copied_videos_are_not_encoded_again(make: Callable[..., Path], tmp_path: Path) -> None:
    source = make([4, 3])
    copied = LeRobotDataset(select(source, tmp_path / "out", [1, 0]))
    name = "observation.images.top"
    for new, old in ((0, 1), (1, 0)):
        before = LeRobotDataset(source).episode(old).values[name]
        assert np.array_equal(copied.episode(new).values[name], before)


def test_select_and_trim(make: Callable[..., Path], tmp_path: Path) -> None:
    source = make([6, 5, 4])
    chosen = LeRobotDataset(select(source, tmp_path / "chosen", [2, 0]))
    assert_episode(chosen, 0, 2, 4)
    assert_episode(chosen, 1, 0, 6)
    cut = LeRobotDataset(trim(source, tmp_path / "cut", {0: (1, 4)}))
    assert [record.length for record in cut.metadata.episodes] == [3, 5, 4]
    for number in range(3):
        values = cut.episode(0).values
        expected = frame(0, number + 1, 6)
        assert np.array_equal(values["action"][number], expected["action"])
        top = values["observation.images.top"][number].astype(int)
        # Frame 1 is no key frame, so that this episode is encoded a second time.
        assert np.abs(top - expected["observation.images.top"]).mean() < 5
    assert cut.stats["observation.images.top"]["count"].tolist() == [12]
    with pytest.raises(DatasetError, match="episode 0: frames 3 to 9 were given; .* 0 to 6"):
        trim(source, tmp_path / "no", {0: (3, 9)})
    with pytest.raises(DatasetError, match="has episodes 0 to 2; 7 was given"):
        select(source, tmp_path / "no", [7])


def test_final_observations_are_copied(tmp_path: Path) -> None:
    features = {name: NUMBERS[name] for name in ("observation.state", "action")}
    with DatasetWriter.create(tmp_path / "a", FPS, features, final_observations=True) as writer:
        add(writer, 0, 4)
        writer.save_episode({"observation.state": np.full(4, 7.0)})
    same = LeRobotDataset(merge([tmp_path / "a"], tmp_path / "b")).episode(0)
    assert same.final_observation["observation.state"].tolist() == [7.0] * 4
    cut = LeRobotDataset(trim(tmp_path / "a", tmp_path / "c", {0: (0, 2)})).episode(0)
    following = frame(0, 2, 4)["observation.state"]
    assert np.array_equal(cut.final_observation["observation.state"], following)


def test_datasets_that_do_not_fit_are_not_merged(make: Callable[..., Path], tmp_path: Path) -> None:
    first, other = make([1]), make([1], "other", features=NUMBERS)
    with pytest.raises(DatasetError, match="feature 'observation.images.top' is video .* absent"):
        merge([first, other], tmp_path / "out")
    with DatasetWriter.create(tmp_path / "slow", 5, NUMBERS) as writer:
        add(writer, 0, 1)
        writer.save_episode()
    with pytest.raises(DatasetError, match="5 frames per second.* 10"):
        merge([other, tmp_path / "slow"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_summary(make: Callable[..., Path]) -> None:
    summary = summarize(make([4, 3, 2]))
    assert (summary["episodes"], summary["frames"], summary["version"]) == (3, 9, "v3.0")
    assert summary["tasks"] == {"task 0": 2, "task 1": 1}
    assert summary["episode_length"] == {"min": 2, "max": 4}
    assert summary["features"]["action"] == {"dtype": "float32", "shape": [2]}
    assert set(FEATURES) < set(summary["features"])


def test_commands(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(make([4, 3, 2], features=NUMBERS))
    assert main(["info", source]) == 0
    assert "episodes     3" in capsys.readouterr().out
    assert main(["info", source, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 9
    out = str(tmp_path / "out")
    assert main(["select", source, "--out", out, "--episodes", "0,1-2"]) == 0
    assert f"{out}: 3 episodes, 9 frames" in capsys.readouterr().out
    assert main(["trim", source, "--out", out + "t", "--frames", "0:0:2", "2:1:2"]) == 0
    assert "3 episodes, 6 frames" in capsys.readouterr().out
    assert main(["merge", source, out, "--out", out + "m"]) == 0
    assert "6 episodes, 18 frames" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "nothing")]) == 1
    assert "error: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["select", source, "--out", out, "--episodes", "x"])
    assert "'x' is not a list of episodes" in capsys.readouterr().err
