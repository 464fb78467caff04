"""A picture of the timeline: a bar per process, coloured by what it does, pale where it waits."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf.cli.timeline.lanes import DRIVER, Timeline, is_busy, is_waiting
from rlinf.utils.extras import install_hint

_COLOURS = {
    "env_step": "#2a9d5c",
    "predict": "#2f6fb5",
    "training": "#c8553d",
    "sync_weights": "#8e5bb0",
    "advantages": "#d99a2b",
}
_MORE = (
    "#5b8c8c",
    "#a66a8b",
    "#7a7f3a",
    "#4d5f8f",
    "#94623c",
    "#3f7f6f",
    "#b58a5a",
    "#6f6fb8",
    "#8a9a5b",
    "#a8576b",
    "#4f94a8",
    "#7d6b5d",
)
_WAIT, _IDLE, _INK = "#e3e3e3", "#ffffff", "#222222"
_ROW, _GAP, _LEFT, _TOP = 20, 6, 150, 34


def colour_of(name: str) -> str:
    """Return the colour that a name has unless another one of its picture has it, too."""
    return _COLOURS.get(name) or _MORE[zlib.crc32(name.encode()) % len(_MORE)]


def colours_of(names: Sequence[str]) -> list[str]:
    """Return a colour for each name, differing as long as there are enough of them."""
    taken = {_COLOURS[name] for name in names if name in _COLOURS}
    out = []
    for name in names:
        first = _MORE.index(colour_of(name)) if name not in _COLOURS else 0
        free = [c for c in (*_MORE[first:], *_MORE[:first]) if c not in taken]
        out.append(_COLOURS.get(name) or (free or [colour_of(name)])[0])
        taken.add(out[-1])
    return out


def draw(
    timeline: Timeline, begin: int, end: int, path: str | Path, title: str = "", width: int = 1200
) -> None:
    """Draw a window of time as PNG.

    Args:
        timeline: the run.
        begin: nanoseconds since the epoch.
        end: nanoseconds since the epoch.
        path: file to write.
        title: above the bars.
        width: of the picture, in pixels.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise ValueError(f"a picture needs Pillow: {install_hint('embodied')}") from error
    lanes = [lane for lane in timeline.lanes.values() if lane.name != DRIVER and lane.pieces]
    lanes = [lane for lane in lanes if any(map(is_busy, lane.between(begin, end)))]
    height = _TOP + len(lanes) * (_ROW + _GAP) + 60
    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    pen.text((8, 8), f"{title}  ({(end - begin) / 1e6:.0f} ms)", fill=_INK)
    scale = (width - _LEFT - 10) / (end - begin)
    seconds: dict[str, float] = {}
    for lane in lanes:
        for piece in filter(is_busy, lane.between(begin, end)):
            seconds[piece.name] = seconds.get(piece.name, 0.0) + piece.seconds
    colours = dict(zip(sorted(seconds), colours_of(sorted(seconds)), strict=True))
    for row, lane in enumerate(lanes):
        top = _TOP + row * (_ROW + _GAP)
        pen.text((8, top + 4), lane.name[:22], fill=_INK)
        for piece in lane.between(begin, end):
            left = _LEFT + (piece.begin - begin) * scale
            right = _LEFT + (piece.end - begin) * scale
            colour = _IDLE
            if is_busy(piece):
                colour = colours[piece.name]
            elif is_waiting(piece):
                colour = _WAIT
            pen.rectangle((left, top, max(right, left + 0.6), top + _ROW), fill=colour)
    longest = sorted(seconds, key=lambda name: -seconds[name])[:9]
    _legend(pen, {name: colours[name] for name in longest}, height, width)
    image.save(path)


def _legend(pen: Any, colours: dict[str, str], height: int, width: int) -> None:
    left = _LEFT
    for name, colour in (colours | {"waiting": _WAIT}).items():
        pen.rectangle((left, height - 32, left + 14, height - 18), fill=colour)
        pen.text((left + 20, height - 31), name, fill=_INK)
        left += 40 + 7 * len(name)
        if left > width - 100:
            break
