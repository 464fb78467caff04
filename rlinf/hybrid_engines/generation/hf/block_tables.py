"""Which blocks of a paged cache hold the tokens of each row.

A sequence of n tokens has its token i at offset `i % size` of block `table[i // size]`. The samples
of a group share the full blocks of their prompt; its last block, if it is not full, is written once
for each of them. So a block that is still written belongs to one row, and nothing has to be copied
when a row goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlinf.hybrid_engines.generation.hf.blocks import NOBODY, BlockPool


class BlockTables:
    """Blocks of all rows, taken from a pool.

    A row begins by `claim`, gets further by `extend`, and ends by `release`. The pool grows while
    it may; after that `claim` and `extend` say no.

    Args:
        rows: How many.
        capacity: Tokens per row, a multiple of `size`.
        size: Tokens per block.
        most: Blocks at most, `NOBODY` included.
        count: Blocks at first; None is all.
        reuse: Whether sequences use what others left.
        grow: Takes the memory of so many blocks in all, at most `most`, and returns how many there
            are then: more, if it takes memory in large pieces, fewer, if there is none left.

    Attributes:
        pool: The blocks.
        table: `[rows, capacity / size]` int64, `NOBODY` where a row has none.
        counts: `[rows]`, blocks of each.
        read: `[rows]`, tokens of the prefix that were there already when the row began.
        taken: `[rows]`, whether a row has a sequence.
        changes: Goes up whenever a row gets, loses or moves blocks.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        size: int,
        most: int,
        count: int | None = None,
        reuse: bool = True,
        grow: Callable[[int], int] = lambda count: count,
    ):
        assert capacity % size == 0 and most > capacity // size
        self.pool = BlockPool(most if count is None else min(count, most), size)
        self.table = np.full((rows, capacity // size), NOBODY, np.int64)
        self.counts = np.zeros(rows, np.int64)
        self.read = np.zeros(rows, np.int64)
        self.taken = np.zeros(rows, bool)
        self.changes = 0
        self._most = most
        self._reuse = reuse
        self._grow = grow

    def claim(self, prefix: Sequence[int], rows: Sequence[int]) -> bool:
        """Take the blocks of a prefix for rows that have none.

        Rows that are under way get the next block each before others begin, so that a sequence is
        not let in to be taken out again.

        Args:
            prefix: Its tokens.
            rows: Which begin with it.

        Returns:
            Whether there are enough blocks; none is taken otherwise.
        """
        assert not self.taken[list(rows)].any(), f"rows {rows} have sequences"
        pool, size = self.pool, self.pool.size
        # The last token is always read: its logits are needed.
        found = pool.find(prefix, (len(prefix) - 1) // size) if self._reuse else []
        pool.share(found)
        full, rest = divmod(len(prefix), size)
        need = full - len(found) + (len(rows) if rest else 0)
        if not self._provide(need + self._spare(full + (rest > 0), len(rows))):
            pool.release(found)
            return False
        self.changes += 1
        shared = [*found, *(pool.take() for _ in range(full - len(found)))]
        for _ in rows[1:]:
            pool.share(shared)
        for row in rows:
            self.table[row, :full] = shared
            if rest:
                self.table[row, full] = pool.take()
            self.counts[row] = full + (rest > 0)
            self.read[row] = len(found) * size
            self.taken[row] = True
        return True

    def extend(self, positions: np.ndarray) -> bool:
        """Take a block for every row whose next token needs one.

        Args:
            positions: `[rows]`, where the next token of each row goes.

        Returns:
            Whether there are enough; none is taken otherwise.
        """
        need = np.flatnonzero(self.taken & (positions // self.pool.size >= self.counts))
        if not len(need):
            return True
        if not self._provide(len(need)):
            return False
        for row in need:
            self.table[row, self.counts[row]] = self.pool.take()
        self.counts[need] += 1
        self.changes += 1
        return True

    def keep(self, prefix: Sequence[int], row: int) -> None:
        """Let others use the full blocks of a row, whose tokens were read."""
        if self._reuse:
            self.pool.keep(prefix, self.table[row, : len(prefix) // self.pool.size].tolist())

    def release(self, row: int) -> None:
        """Give the blocks of a row back."""
        self.pool.release(self.table[row, : self.counts[row]].tolist())
        self.table[row] = NOBODY
        self.counts[row] = self.read[row] = 0
        self.taken[row] = False
        self.changes += 1

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Let rows have the blocks of others, which have none then."""
        assert not self.taken[list(target)].any(), f"rows {target} have sequences"
        for state, empty in (
            (self.table, NOBODY),
            (self.counts, 0),
            (self.read, 0),
            (self.taken, False),
        ):
            state[target] = state[source]
            state[source] = empty
        self.changes += 1

    def _spare(self, blocks: int, rows: int) -> int:
        """Return how many blocks stay free when so many rows begin with so many blocks."""
        if not self.taken.any():
            return 0
        longest = self.table.shape[1]
        under_way = np.count_nonzero(self.taken & (self.counts < longest))
        return int(under_way) + (rows if blocks < longest else 0)

    def _provide(self, need: int) -> bool:
        """Let the pool grow if it must and may."""
        missing = need - self.pool.available
        if missing > 0 and self.pool.count < self._most:
            self.pool.grow(min(self._most, self._grow(min(self._most, self.pool.count + missing))))
        return self.pool.available >= need
