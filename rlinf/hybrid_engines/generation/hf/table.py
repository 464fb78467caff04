"""Who has which row of the cache, as the host knows it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlinf.hybrid_engines.generation.hf.sequences import Lanes
from rlinf.hybrid_engines.generation.responses import Response


class RowTable:
    """The rows of a cache: those of responses, and free ones.

    Decoding steps work on the first rows, so rows move together when responses end.

    Args:
        slots: Rows.
        lanes: Where the host collects tokens.
        few_sizes: Whether steps should have few different sizes, since each has a CUDA graph.

    Attributes:
        running: Responses with a row.
        lanes: `[slots]`, the lane of each row.
        positions: `[slots]`, where the next token of each row goes.
        parked: Rows that were freed and that the device does not know of.
    """

    def __init__(self, slots: int, lanes: Lanes, few_sizes: bool):
        self.running = 0
        self.positions = np.zeros(slots, np.int64)
        self.lanes = np.full(slots, lanes.trash)
        self.parked: list[int] = []
        self._trash = lanes.trash
        self._owners: list[Response | None] = [None] * slots
        self._entered = np.zeros(slots, np.int64)
        self._entries = 0
        self._greedy = self._cut = 0
        self._few_sizes = few_sizes
        self._changed = False

    def __iter__(self) -> Iterator[Response]:
        """The responses with a row, which may leave meanwhile."""
        return iter([owner for owner in self._owners if owner is not None])

    @property
    def free(self) -> list[int]:
        """Rows without a response."""
        return np.flatnonzero(self.lanes == self._trash).tolist()

    @property
    def greedy(self) -> bool:
        """Whether a response takes the likeliest tokens."""
        return self._greedy > 0

    @property
    def cuts(self) -> bool:
        """Whether a response has top-k or top-p."""
        return self._cut > 0

    @property
    def youngest(self) -> Response:
        """The response that got its row last."""
        taken = np.flatnonzero(self.lanes != self._trash)
        return self._owners[taken[self._entered[taken].argmax()]]

    def enter(self, response: Response, row: int) -> None:
        """Give a response, which has a lane, a row."""
        response.row = row
        self._owners[row], self.lanes[row] = response, response.lane
        self.positions[row] = len(response.request.prompt_ids) + len(response.tokens)
        self._entries += 1
        self._entered[row] = self._entries
        self._count(response, 1)

    def leave(self, response: Response) -> None:
        """Free the row of a response."""
        row, response.row = response.row, -1
        self._owners[row], self.lanes[row], self.positions[row] = None, self._trash, 0
        self.parked.append(row)
        self._count(response, -1)

    def step(self) -> tuple[int, int, np.ndarray]:
        """Plan a decoding step, in which every response gets one token further.

        Returns:
            Rows of the step, the tokens of the longest one, the new one included, and `[rows]` the
            lane of each.
        """
        taken = self.lanes != self._trash
        rows = self._size(len(taken) - int(taken[::-1].argmax()))
        longest = 1 + int(self.positions[:rows].max())
        self.positions[:rows] += taken[:rows]
        return rows, longest, self.lanes[:rows].copy()

    def moves(self) -> tuple[list[int], list[int], int] | None:
        """Move rows together if that makes steps smaller.

        Returns:
            From which rows to which, and how many tokens of them; None if nothing moves.
        """
        if not self._changed or not self.running:
            return None
        self._changed = False
        taken = np.flatnonzero(self.lanes != self._trash)
        count = len(taken)
        if self._size(int(taken[-1]) + 1) == self._size(count):
            return None
        source = taken[taken >= count].tolist()
        holes = np.flatnonzero(self.lanes[:count] == self._trash).tolist()
        length = int(self.positions[source].max())
        for old, new in zip(source, holes, strict=True):
            response = self._owners[new] = self._owners[old]
            response.row, self._owners[old] = new, None
        for state, empty in ((self.positions, 0), (self._entered, 0), (self.lanes, self._trash)):
            state[holes] = state[source]
            state[source] = empty
        self.parked = [row for row in self.parked if row not in holes] + source
        return source, holes, length

    def _size(self, rows: int) -> int:
        """Rows of a step that needs so many: few different numbers, little more than needed."""
        step = 1 << max(0, (rows - 1).bit_length() - 3) if self._few_sizes else 8
        return min(len(self.lanes), rows + -rows % step)

    def _count(self, response: Response, change: int) -> None:
        self.running += change
        self._greedy += change * response.request.params.greedy
        self._cut += change * response.request.params.cuts
        self._changed = True
