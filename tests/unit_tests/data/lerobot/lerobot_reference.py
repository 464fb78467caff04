"""Writes the fixture with lerobot itself, and checks that lerobot reads a dataset of ours.

Not a test: `write` and `check` run in an environment of their own, which has Python 3.12 and
`lerobot[dataset]==0.6.1`; `ours` runs in that of RLinf.

    python lerobot_reference.py write FOLDER     the fixture: two cameras, two tasks, three episodes
    python lerobot_reference.py ours FOLDER      the same episodes, written by rlinf.data.lerobot
    python lerobot_reference.py check FOLDER     read them with lerobot and compare every value
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

LENGTHS = [6, 4, 5]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "observation.images.top": {
        "dtype": "video",
        "shape": (64, 96, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.images.wrist": {
        "dtype": "image",
        "shape": (3, 16, 20),
        "names": ["channels", "height", "width"],
    },
    "grid": {"dtype": "int64", "shape": (2, 3), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
}


def frame(episode: int, number: int) -> dict[str, np.ndarray]:
    """The values of a frame, from its numbers alone."""

    def plain(height: int, width: int) -> np.ndarray:
        colour = (20 + 30 * number, 100, 40 + 60 * episode)
        return np.broadcast_to(np.array(colour, np.uint8), (height, width, 3)).copy()

    return {
        "observation.state": np.array([episode, number, episode * number], np.float32),
        "observation.images.top": plain(64, 96),
        "observation.images.wrist": plain(16, 20),
        "grid": np.arange(6).reshape(2, 3) + 10 * episode + number,
        "action": np.array([number / 10, -episode / 10], np.float32),
        "next.reward": np.array([number], np.float32),
        "next.done": np.array([number == LENGTHS[episode] - 1]),
    }


def write(folder: Path) -> None:
    """Write the fixture with lerobot."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset.create("reference/fixture", 10, FEATURES, root=folder)
    for episode, length in enumerate(LENGTHS):
        for number in range(length):
            dataset.add_frame({**frame(episode, number), "task": f"task {episode % 2}"})
        dataset.save_episode()
    dataset.finalize()


def ours(folder: Path) -> None:
    """Write the episodes of the fixture with our writer, in two goes and with additions of ours."""
    from rlinf.data.lerobot import DatasetWriter

    first = DatasetWriter.create(folder, 10, FEATURES, final_observations=True)
    for episode, length in enumerate(LENGTHS):
        with first if episode == 0 else DatasetWriter.append(folder) as writer:
            for number in range(length):
                writer.add_frame(frame(episode, number), f"task {episode % 2}")
            last = frame(episode, length - 1)
            seen = {name: last[name] for name in FEATURES if name.startswith("observation")}
            writer.save_episode(final_observation=seen)


def check(folder: Path) -> None:
    """Read every frame of the episodes with lerobot, and compare it with what was written.

    Raises:
        AssertionError: Something was read that was not written.
    """
    import lerobot
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("reference/check", root=folder, video_backend="pyav")
    assert (dataset.num_episodes, len(dataset), dataset.fps) == (len(LENGTHS), sum(LENGTHS), 10)
    index, frames = 0, []
    for episode, length in enumerate(LENGTHS):
        for number in range(length):
            item, expected = dataset[index], frame(episode, number)
            assert item["task"] == f"task {episode % 2}"
            assert (item["index"], item["episode_index"]) == (index, episode)
            assert item["frame_index"] == number
            np.testing.assert_allclose(item["timestamp"], number / 10, atol=1e-6)
            for name, value in expected.items():
                read = item[name].numpy()
                if "images" in name:
                    # lerobot gives pictures as float32 [C, H, W] from 0 to 1; videos are lossy.
                    assert read.dtype == np.float32 and read.shape == (3, *value.shape[:2])
                    away = np.abs(255 * read.transpose(1, 2, 0) - value)
                    assert away.mean() < 5 if name.endswith("top") else away.max() < 0.01
                else:
                    np.testing.assert_array_equal(read.reshape(value.shape), value)
            frames.append(expected)
            index += 1
    for name in ("observation.state", "action", "next.reward"):
        every = np.stack([values[name] for values in frames]).astype(np.float64)
        for which in ("mean", "std", "min", "max"):
            read = np.asarray(dataset.meta.stats[name][which])
            expected = getattr(every, which)(0)
            np.testing.assert_allclose(read, expected, atol=1e-6, err_msg=f"{which} of {name}")
    print(f"lerobot {lerobot.__version__} reads {index} frames of {folder} as they were written")


if __name__ == "__main__":
    {"write": write, "ours": ours, "check": check}[sys.argv[1]](Path(sys.argv[2]))
