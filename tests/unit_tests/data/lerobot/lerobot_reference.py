"""Writes the fixture with lerobot itself, and checks that lerobot opens a dataset of ours.

Not a test: it runs in an environment of its own, which has lerobot.

    python lerobot_reference.py write FOLDER     the fixture: two cameras, two tasks, three episodes
    python lerobot_reference.py check FOLDER     read every frame with lerobot; print what it saw
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

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
    """Write the fixture."""
    dataset = LeRobotDataset.create("reference/fixture", 10, FEATURES, root=folder)
    for episode, length in enumerate(LENGTHS):
        for number in range(length):
            dataset.add_frame({**frame(episode, number), "task": f"task {episode % 2}"})
        dataset.save_episode()
    dataset.finalize()


def check(folder: Path) -> None:
    """Read every frame of a dataset, and print shapes and means."""
    dataset = LeRobotDataset("reference/check", root=folder, video_backend="pyav")
    seen = []
    for index in range(len(dataset)):
        item = dataset[index]
        means = {k: float(v.float().mean()) for k, v in item.items() if hasattr(v, "float")}
        texts = {k: v for k, v in item.items() if isinstance(v, str)}
        seen.append({**means, **texts})
    shapes = {k: list(v.shape) for k, v in dataset[0].items() if hasattr(v, "shape")}
    stats = {k: v["mean"].ravel().tolist() for k, v in dataset.meta.stats.items()}
    result = {"episodes": dataset.num_episodes, "shapes": shapes, "frames": seen, "stats": stats}
    print(json.dumps(result))


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](Path(sys.argv[2]))
