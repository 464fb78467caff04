"""Videos of episodes: frames of chosen slots, side by side, as mp4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.envs.base import VectorEnv
from rlinf.envs.errors import MissingSimulator
from rlinf.utils.extras import install_hint

_MARGIN = 2
_GREEN = np.array([40, 170, 80], dtype=np.uint8)
_GREY = np.array([90, 90, 90], dtype=np.uint8)


class VideoRecorder:
    """Records what an env does, one frame per call of `capture`.

    Rendering takes far longer than stepping, so it is only done when asked for: call `capture`
    after `reset` and after every `chunk_step`. Use as a context manager, or call `close`.

    Attributes:
        path: The file.
        frames: Frames written so far.
    """

    def __init__(
        self,
        env: VectorEnv,
        path: str | Path,
        slots: Sequence[int] | None = None,
        fps: float = 30,
        captions: bool = True,
        label: str | None = None,
    ) -> None:
        """Prepare a file; it is opened with the first frame.

        Args:
            env: The env.
            path: Where to write; ends with `.mp4`.
            slots: Which slots; the first four by default.
            fps: Frames per second.
            captions: Write step, return and success under each picture.
            label: What captions begin with; the number of the slot by default.

        Raises:
            MissingSimulator: The writer of videos is not installed.
        """
        try:
            import imageio_ffmpeg  # noqa: F401 (what imageio writes mp4 with)
        except ImportError as error:
            raise MissingSimulator(
                f"videos cannot be written ({error}): {install_hint('embodied')}"
            ) from error
        self.path, self.frames = Path(path), 0
        self._env, self._fps, self._captions, self._label = env, fps, captions, label
        self._slots = list(range(min(4, env.num_envs)) if slots is None else slots)
        self._writer: Any = None

    def capture(self, infos: dict[str, Any] | None = None) -> None:
        """Add a frame that shows the slots as they are now.

        Args:
            infos: Of the last sub-step; episodes that ended in it are shown as ended.

        Raises:
            EnvError: The env has no pictures.
            RuntimeError: Pictures cannot be drawn on this machine.
        """
        pictures = self._env.capture_image(self._slots)
        if self._captions:
            metrics = (infos or {}).get("episode") or self._env.episode_metrics()
            pictures = np.stack(
                [
                    caption(picture, self._text(metrics, slot), bool(metrics["success_once"][slot]))
                    for picture, slot in zip(pictures, self._slots, strict=True)
                ]
            )
        self._write(tile(pictures))

    def _text(self, metrics: dict[str, Any], slot: int) -> str:
        steps, total = int(metrics["episode_len"][slot]), float(metrics["return"][slot])
        solved = " solved" if bool(metrics["success_once"][slot]) else ""
        label = str(slot) if self._label is None else self._label
        return f"{label}: step {steps} return {total:.1f}{solved}"

    def _write(self, frame: np.ndarray) -> None:
        if self._writer is None:
            import imageio

            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = imageio.get_writer(
                self.path, fps=self._fps, codec="libx264", macro_block_size=2, quality=7
            )
        self._writer.append_data(frame)
        self.frames += 1

    def close(self) -> Path | None:
        """Finish the file.

        Returns:
            Its path, or None if nothing was recorded.
        """
        if self._writer is None:
            return None
        self._writer.close()
        self._writer = None
        return self.path

    def __enter__(self) -> VideoRecorder:
        """Start recording."""
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the file, also when something failed: what was recorded may show why."""
        self.close()


def tile(pictures: np.ndarray) -> np.ndarray:
    """Lay pictures out on a grid that is as square as it can be.

    Args:
        pictures: uint8 `[N, H, W, 3]`.

    Returns:
        uint8 `[H', W', 3]` with even sides, as video codecs want them.
    """
    count, height, width, _ = pictures.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    high, wide = rows * (height + _MARGIN), columns * (width + _MARGIN)
    sheet = np.zeros((high + high % 2, wide + wide % 2, 3), dtype=np.uint8)
    for index, picture in enumerate(pictures):
        row, column = divmod(index, columns)
        top, left = row * (height + _MARGIN), column * (width + _MARGIN)
        sheet[top : top + height, left : left + width] = picture
    return sheet


def caption(picture: np.ndarray, text: str, success: bool) -> np.ndarray:
    """Add a strip below a picture, green once the task was solved.

    Args:
        picture: uint8 `[H, W, 3]`.
        text: What to write; left out if there is nothing to write with.
        success: Colours the strip.

    Returns:
        uint8 `[H + strip, W, 3]`.
    """
    strip = np.empty((16, picture.shape[1], 3), dtype=np.uint8)
    strip[:] = _GREEN if success else _GREY
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        return np.concatenate([picture, strip])
    image = Image.fromarray(strip)
    ImageDraw.Draw(image).text((4, 2), text, fill=(255, 255, 255))
    return np.concatenate([picture, np.asarray(image)])
