"""Landmarks of navigation worlds: their colours, shapes and names."""

from __future__ import annotations

COLOURS = {
    "red": (220, 50, 47),
    "green": (60, 180, 75),
    "blue": (50, 100, 230),
    "yellow": (240, 200, 40),
}
SHAPES = ("ball", "box", "cone", "cross")


def landmark_names() -> list[str]:
    """Return the landmarks, by colour and shape, in the order of their numbers."""
    return [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
