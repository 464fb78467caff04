"""Small datasets with every kind of feature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (4,), "names": ["a", "b", "c", "d"]},
    "observation.images.top": {
        "dtype": "video",
        "shape": (48, 64, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.images.wrist": {
        "dtype": "image",
        "shape": (3, 16, 20),
        "names": ["channels", "height", "width"],
    },
    "counts": {"dtype": "int64", "shape": (2, 3), "names": None},
    "flags": {"dtype": "bool", "shape": (2,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
}
NUMBERS = {
    name: FEATURES[name] for name in ("observation.state", "action", "next.reward", "next.done")
}
FPS = 10


def picture(episode: int, frame: int, height: int, width: int) -> np.ndarray:
    """A gradient whose red says which frame it is, and whose blue which episode."""
    rows = np.linspace(30, 220, height)[:, None]
    planes = (20 + 12 * frame, rows, 40 + 60 * episode)
    return np.stack([np.broadcast_to(plane, (height, width)) for plane in planes], -1).astype(
        np.uint8
    )


def frame(episode: int, number: int, length: int) -> dict[str, Any]:
    """All features of a frame."""
    rng = np.random.default_rng(100 * episode + number)
    return {
        "observation.state": rng.normal(size=4).astype(np.float32),
        "observation.images.top": picture(episode, number, 48, 64),
        "observation.images.wrist": picture(episode, number, 16, 20),
        "counts": rng.integers(-(2**40), 2**40, size=(2, 3)),
        "flags": np.array([number % 2 == 0, episode % 2 == 0]),
        "note": f"Ünïcode {number}",
        "action": rng.normal(size=2).astype(np.float32),
        "next.reward": float(number),
        "next.done": number == length - 1,
    }


def add(writer: Any, episode: int, length: int, task: str = "reach") -> None:
    """Add the frames of an episode, with the features that the dataset has."""
    for number in range(length):
        values = frame(episode, number, length)
        writer.add_frame({name: values[name] for name in writer._given}, task)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Writes a dataset with episodes of some lengths; returns its folder."""
    from rlinf.data.lerobot import DatasetWriter

    def write(lengths: list[int], name: str = "data", features: Any = FEATURES, **options) -> Path:
        with DatasetWriter.create(tmp_path / name, FPS, features, **options) as writer:
            for episode, length in enumerate(lengths):
                add(writer, episode, length, f"task {episode % 2}")
                writer.save_episode()
        return tmp_path / name

    return write
