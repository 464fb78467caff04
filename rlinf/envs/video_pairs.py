"""Two videos beside each other, such as one start played by two policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlinf.envs.errors import MissingSimulator
from rlinf.envs.video import caption
from rlinf.utils.extras import install_hint


def beside(left: Path, right: Path, target: Path, titles: tuple[str, str]) -> Path:
    """Write a video that shows two of them; the shorter one stands still at its end.

    Args:
        left: mp4.
        right: mp4 of the same size.
        target: Where to write.
        titles: What is written below each.

    Returns:
        The target.

    Raises:
        MissingSimulator: What reads and writes videos is not installed.
        ValueError: The pictures differ in size.
    """
    try:
        import imageio
        import imageio_ffmpeg  # noqa: F401 (what imageio reads and writes mp4 with)
    except ImportError as error:
        raise MissingSimulator(
            f"videos cannot be put together ({error}): {install_hint('embodied')}"
        ) from error
    sides = []
    fps = 30.0
    for file, title in zip((left, right), titles, strict=True):
        with imageio.get_reader(file) as reader:
            fps = reader.get_meta_data()["fps"]
            sides.append([caption(np.asarray(frame), title, False) for frame in reader])
    if sides[0][0].shape != sides[1][0].shape:
        raise ValueError(
            f"{left} has pictures of {sides[0][0].shape[:2]}, and {right} of "
            f"{sides[1][0].shape[:2]}: record both with the same env"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with imageio.get_writer(
        target, fps=fps, codec="libx264", macro_block_size=2, quality=7
    ) as writer:
        for number in range(max(map(len, sides))):
            writer.append_data(np.concatenate([_at(side, number) for side in sides], axis=1))
    return target


def _at(frames: list[Any], number: int) -> Any:
    return frames[min(number, len(frames) - 1)]
