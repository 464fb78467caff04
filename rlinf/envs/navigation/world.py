"""A world of rooms on a grid: where walls and landmarks are, and how an agent moves in it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from rlinf.envs.navigation.pictures import (
    AGENT,
    FIRST_LANDMARK,
    FLOOR,
    TILE,
    WALL,
    draw,
    tiles,
)

_HEADINGS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Rows and columns of a step north, east, south and west."""
_UNREACHED = -1
_NEAR = 1
"""Steps from a landmark at which an agent is there."""


class Move(IntEnum):
    """What an agent does in a step."""

    FORWARD = 0
    LEFT = 1
    RIGHT = 2
    STOP = 3


class World:
    """One world, one agent and the landmark that it has to find.

    Landmarks and walls are in the way. Everything is drawn from a seed, and the agent begins where
    it can get to the goal, but is not there yet.

    Attributes:
        landmarks: Numbers of the landmarks that there are; the goal is the first.
        position: Row and column of the agent.
        heading: Where it looks: 0 north, 1 east, 2 south, 3 west.
    """

    def __init__(
        self,
        seed: int,
        goal: int,
        *,
        size: int,
        rooms: int,
        landmarks: int,
        kinds: Sequence[int],
        view: int,
    ) -> None:
        """Draw a world.

        Args:
            seed: Decides everything but the goal.
            goal: Number of the landmark to find.
            size: Cells along each side, without the outer wall.
            rooms: 1, 2 or 4.
            landmarks: How many there are.
            kinds: Numbers of those that there may be; no two are the same.
            view: Cells that the agent sees ahead, and across.
        """
        rng = np.random.default_rng(seed)
        others = rng.permutation([kind for kind in kinds if kind != goal])
        self.landmarks = [goal, *others[: landmarks - 1].tolist()]
        self._view = view
        while not self._draw(rng, size, rooms):
            pass

    def _draw(self, rng: np.random.Generator, size: int, rooms: int) -> bool:
        """Draw walls, landmarks and the agent; return whether it can get to the goal."""
        cells, doors = _walls(rng, size, rooms)
        free = [tuple(cell) for cell in np.argwhere(cells == FLOOR) if not _beside(cell, doors)]
        chosen = rng.permutation(len(free))[: len(self.landmarks)]
        if len(chosen) < len(self.landmarks):
            raise ValueError(
                f"a world of {size} by {size} cells in {rooms} room(s) has no place for "
                f"{len(self.landmarks)} landmarks: set landmarks lower or size higher"
            )
        for kind, place in zip(self.landmarks, chosen, strict=True):
            cells[free[place]] = FIRST_LANDMARK + kind
        self._distances = _distances_to(free[chosen[0]], cells)
        begins = np.argwhere(self._distances > _NEAR)
        if not len(begins):
            return False
        self.position = tuple(begins[rng.integers(len(begins))].tolist())
        self.heading = int(rng.integers(4))
        self._cells = cells
        # Seen with each heading at the top, and with enough wall around for views at the edge.
        padded = np.pad(cells, self._view, constant_values=WALL)
        self._turned = [np.ascontiguousarray(np.rot90(padded, turns)) for turns in range(4)]
        return True

    @property
    def distance(self) -> int:
        """Steps from the agent to the goal."""
        return int(self._distances[self.position])

    @property
    def is_there(self) -> bool:
        """Whether the agent is beside the goal."""
        return self.distance <= _NEAR

    def move(self, move: int) -> None:
        """Carry out a move; nothing happens where something is in the way."""
        if move == Move.LEFT:
            self.heading = (self.heading - 1) % 4
        elif move == Move.RIGHT:
            self.heading = (self.heading + 1) % 4
        elif move == Move.FORWARD:
            ahead = tuple(np.add(self.position, _HEADINGS[self.heading]).tolist())
            if self._cells[ahead] == FLOOR:
                self.position = ahead

    def look(self) -> np.ndarray:
        """Return what the agent sees, with its own place in the middle of the last row of cells.

        Returns:
            uint8 `[view * TILE, view * TILE, 3]`.
        """
        view, turned = self._view, self._turned[self.heading]
        row, column = (place + view for place in self.position)
        for _ in range(self.heading):
            row, column = len(turned) - 1 - column, row
        left = column - view // 2
        return draw(turned[row - view + 1 : row + 1, left : left + view])

    def look_down(self) -> np.ndarray:
        """Return a picture of the whole world for people; a cone points where the agent looks."""
        picture = draw(self._cells)
        row, column = (place * TILE for place in self.position)
        agent = np.rot90(tiles()[AGENT], -self.heading)
        picture[row : row + TILE, column : column + TILE] = agent
        return picture


def _walls(
    rng: np.random.Generator, size: int, rooms: int
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the cells of a world with its walls, and where the doors in them are."""
    cells = np.full((size + 2, size + 2), FLOOR)
    cells[[0, -1]] = WALL
    cells[:, [0, -1]] = WALL
    if rooms == 1:
        return cells, []
    middle = (size + 1) // 2
    halves = [(1, middle), (middle + 1, size + 1)]
    cells[:, middle] = WALL
    if rooms == 2:
        doors = [(int(rng.integers(1, size + 1)), middle)]
    else:
        cells[middle] = WALL
        doors = [(int(rng.integers(*half)), middle) for half in halves]
        doors += [(middle, int(rng.integers(*half))) for half in halves]
    for door in doors:
        cells[door] = FLOOR
    return cells, doors


def _beside(cell: np.ndarray, doors: list[tuple[int, int]]) -> bool:
    """Return whether a cell is a door, or next to one."""
    return any(np.abs(np.subtract(cell, door)).sum() <= 1 for door in doors)


def _distances_to(goal: tuple[int, int], cells: np.ndarray) -> np.ndarray:
    """Return the steps from each cell to a goal, by breadth-first search; -1 if there is no way."""
    distances = np.full(cells.shape, _UNREACHED)
    distances[goal] = 0
    reached = [goal]
    for place in reached:
        for step in _HEADINGS:
            cell = place[0] + step[0], place[1] + step[1]
            if cells[cell] == FLOOR and distances[cell] == _UNREACHED:
                distances[cell] = distances[place] + 1
                reached.append(cell)
    return distances
