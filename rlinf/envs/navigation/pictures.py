"""What the cells of a navigation world look like: small square tiles."""

from __future__ import annotations

from functools import cache

import numpy as np

from rlinf.envs.navigation.landmarks import COLOURS, SHAPES

TILE = 8
"""Height and width of a cell (pixels)."""

FLOOR, WALL, AGENT, FIRST_LANDMARK = 0, 1, 2, 3
"""Contents of cells; landmark `i` is `FIRST_LANDMARK + i`, and nobody stands where the agent is."""
_FLOOR_COLOUR, _WALL_COLOUR, _AGENT_COLOUR = (30, 30, 34), (128, 128, 128), (250, 250, 250)


@cache
def tiles() -> np.ndarray:
    """Return the picture of each content of a cell, uint8 `[contents, TILE, TILE, 3]`."""
    painted = [
        _filled(_FLOOR_COLOUR),
        _filled(_WALL_COLOUR),
        _on_floor(_shape("cone"), _AGENT_COLOUR),
    ]
    painted += [_on_floor(_shape(shape), rgb) for rgb in COLOURS.values() for shape in SHAPES]
    return np.stack(painted)


def draw(cells: np.ndarray) -> np.ndarray:
    """Draw cells.

    Args:
        cells: Their contents, `[rows, columns]`.

    Returns:
        uint8 `[rows * TILE, columns * TILE, 3]`.
    """
    rows, columns = cells.shape
    return tiles()[cells].swapaxes(1, 2).reshape(rows * TILE, columns * TILE, 3)


def _shape(name: str) -> np.ndarray:
    """Return where a shape covers its tile, bool `[TILE, TILE]`."""
    row, column = np.mgrid[:TILE, :TILE] - (TILE - 1) / 2
    edge = (TILE - 2) / 2
    inside = np.maximum(abs(row), abs(column)) < edge
    if name == "ball":
        return row**2 + column**2 < edge**2
    if name == "cone":
        return inside & (2 * abs(column) < row + edge)
    if name == "cross":
        return inside & (np.minimum(abs(row), abs(column)) < 1)
    return inside


def _filled(colour: tuple[int, int, int]) -> np.ndarray:
    return np.full((TILE, TILE, 3), colour, np.uint8)


def _on_floor(covered: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    tile = _filled(_FLOOR_COLOUR)
    tile[covered] = colour
    return tile
