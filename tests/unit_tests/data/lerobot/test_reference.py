"""A dataset that lerobot 0.6.1 wrote (`lerobot_reference.py write`) is read as it was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

from rlinf.data.lerobot import DatasetWriter, LeRobotDataset, episodes  # noqa: E402

FIXTURE = Path(__file__).parent / "fixtures" / "lerobot_0_6_1"
LENGTHS = [6, 4, 5]


def check(dataset: LeRobotDataset) -> None:
    assert dataset.tasks == ["task 0", "task 1"]
    for episode, length in enumerate(LENGTHS):
        read = dataset.episode(episode)
        assert read.length == length and read.tasks == [f"task {episode % 2}"] * length
        for number in range(length):
            values = {name: value[number] for name, value in read.values.items()}
            state = [episode, number, episode * number]
            assert values["observation.state"].tolist() == state
            grid = np.arange(6).reshape(2, 3) + 10 * episode + number
            assert np.array_equal(values["grid"], grid)
            assert np.allclose(values["action"], [number / 10, -episode / 10])
            assert values["next.reward"] == number
            assert values["next.done"] == (number == length - 1)
            colour = np.array([20 + 30 * number, 100, 40 + 60 * episode])
            assert (values["observation.images.wrist"] == colour).all()
            top = values["observation.images.top"]
            assert top.shape == (64, 96, 3) and np.abs(top - colour.astype(float)).mean() < 5


def test_it_is_read() -> None:
    dataset = LeRobotDataset(FIXTURE)
    assert (dataset.num_episodes, len(dataset), dataset.fps) == (3, 15, 10)
    check(dataset)
    every = np.concatenate([e.values["action"] for e in dataset.episodes(["action"])])
    assert np.allclose(dataset.stats["action"]["mean"], every.mean(0), atol=1e-6)
    assert np.allclose(dataset.stats["action"]["std"], every.std(0), atol=1e-6)
    assert [len(transitions) for transitions in episodes(dataset)] == LENGTHS


def test_it_is_appended_to(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    shutil.copytree(FIXTURE, folder)
    frame = {name: value[0] for name, value in LeRobotDataset(folder).episode(2).values.items()}
    with DatasetWriter.append(folder) as writer:
        writer.add_frame({name: frame[name] for name in writer._given}, "a new task")
        assert writer.save_episode() == 3
    dataset = LeRobotDataset(folder)
    assert dataset.num_episodes == 4 and dataset.episode(3).tasks == ["a new task"]
    assert np.array_equal(dataset.episode(3).values["grid"][0], frame["grid"])
    dataset.tasks.remove("a new task")
    check(dataset)
