"""A paged cache in the memory of the host.

Memory. Blocks lie in one tensor per layer, `[blocks, kv_heads, block, D]`, which grows by need.

Attention. Gathering the blocks of each row would copy all keys and values in every step. Instead
queries go to the blocks, which stay where they are: each block is multiplied with the queries of
its rows, and what a row sees in its blocks is joined by the greatest score and the sum of weights
of each. A block that several rows share is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlinf.hybrid_engines.generation.hf.block_cache import BlockCache
from rlinf.hybrid_engines.generation.hf.blocks import NOBODY
from rlinf.hybrid_engines.generation.hf.kv_cache import CacheShape, Decode, Prefill

_FIRST = 16
"""Blocks at first."""


@dataclass
class Readers:
    """Blocks with about as many rows each, in one decoding step.

    Attributes:
        blocks: `[N]`, which; None is the first N of the pool.
        rows: `[N * U]`, the rows that look at each; some are there to fill up.
        users: U.
        bias: `[N, 1, 1, block]` of 0 and -inf, what is not written yet; None if all is.
    """

    blocks: Tensor | None
    rows: Tensor
    users: int
    bias: Tensor | None


@dataclass
class Layout:
    """Which rows look at which blocks, until a row gets, loses or moves blocks.

    Attributes:
        rows: Of a step.
        changes: Those of the tables until now.
        who: `[R]`, rows with a sequence.
        positions: `[R]`, where the newest token of each is.
        newest: `[R]`, which of the first readers' blocks gets it.
        blocks: `[B]`, the block of each row's newest token.
        readers: All blocks of all rows.
        parts: `[B * most]`, which of the results of the readers are those of a row; the first one
            is none.
        most: Blocks of the longest row.
    """

    rows: int
    changes: int
    who: np.ndarray
    positions: np.ndarray
    newest: np.ndarray
    blocks: np.ndarray
    readers: Sequence[Readers]
    parts: Tensor
    most: int

    def advance(self, positions: np.ndarray) -> bool:
        """Go on by one token in every row; return whether that is what `positions` say."""
        mine = positions[self.who]
        if not np.array_equal(mine, self.positions + 1):
            return False
        self.positions = mine
        bias = self.readers[0].bias.numpy()
        bias[self.newest, 0, 0, mine % bias.shape[-1]] = 0
        return True


@dataclass
class PagedDecode(Decode):
    """A decoding step over blocks.

    Attributes:
        places: `[B * kv_heads]`, where the new tokens go in `[blocks * kv_heads * block, D]`.
        layout: Who looks at what.
    """

    places: Tensor | None = None
    layout: Layout | None = None


class PagedCache(BlockCache):
    """Blocks of `[kv_heads, block, D]` in the memory of the host, for the path `torch`.

    See `BlockCache` for the arguments.
    """

    def __init__(
        self,
        shape: CacheShape,
        device: torch.device,
        dtype: torch.dtype,
        most: int | None = None,
        reuse: bool = True,
    ):
        super().__init__(shape, device, dtype, most, reuse)
        self.tables = self._new_tables(_FIRST)
        self._heads = np.arange(shape.kv_heads)
        self._layout: Layout | None = None

    # -- prompts -----------------------------------------------------------------------------------

    def _keep(self, layer: int, k: Tensor, v: Tensor, batch: Prefill) -> None:
        for own, new in ((self.keys[layer], k), (self.values[layer], v)):
            own.view(-1, new.shape[-1]).index_copy_(0, batch.places, new[batch.kept].flatten(0, 1))

    def _read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        count, span = blocks.shape
        keys, values = (
            own[layer]
            .index_select(0, blocks.view(-1))
            .view(count, span, self.shape.kv_heads, self.block, -1)
            .transpose(1, 2)
            .reshape(count, self.shape.kv_heads, span * self.block, -1)
            for own in (self.keys, self.values)
        )
        return keys, values

    # -- decoding ----------------------------------------------------------------------------------

    def prepare(self, step: Decode) -> PagedDecode:
        """Find out which rows look at which blocks, unless that is known from the step before."""
        positions, layout = step.positions.numpy(), self._layout
        known = layout is not None and layout.changes == self.tables.changes
        if not known or layout.rows != len(positions) or not layout.advance(positions):
            layout = self._layout = self._laid_out(positions)
        # Rows of nobody go on, too.
        blocks = np.where(self.tables.taken[: layout.rows], layout.blocks, NOBODY)
        places = torch.from_numpy(self._places(blocks, positions).reshape(-1))
        return PagedDecode(step.positions, step.span, places=places, layout=layout)

    def _laid_out(self, positions: np.ndarray) -> Layout:
        tables, rows = self.tables, len(positions)
        counts = np.where(tables.taken[:rows], positions // self.block + 1, 0)
        row = np.repeat(np.arange(rows), counts)
        ends = counts.cumsum()
        index = np.arange(len(row)) - np.repeat(ends - counts, counts)
        block = tables.table[row, index]
        written = np.minimum(positions[row] + 1 - index * self.block, self.block)
        readers, part = _readers(block, row, written, self.block)
        most = max(1, int(counts.max()))
        parts = np.zeros((rows, most), np.int64)
        parts[row, index] = part
        who = np.flatnonzero(counts)
        return Layout(
            rows=rows,
            changes=tables.changes,
            who=who,
            positions=positions[who],
            newest=part[ends[who] - 1],
            blocks=tables.table[np.arange(rows), np.maximum(counts - 1, 0)],
            readers=readers,
            parts=torch.from_numpy(parts.reshape(-1)),
            most=most,
        )

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: PagedDecode) -> Tensor:
        """See the base."""
        rows, shape, width, layout = q.shape[0], self.shape, self.shape.head_dim, step.layout
        for own, new in ((self.keys[layer], k), (self.values[layer], v)):
            own.view(-1, width).index_copy_(0, step.places, new.reshape(-1, width))
        q = q.view(rows, shape.kv_heads, shape.group, width) * width**-0.5
        if layout.most == 1:
            # Nothing has to be joined, and what no row has written is left out.
            (readers,) = layout.readers
            span = min(step.span, self.block)
            weights = self._scores(layer, q, readers, span).softmax(-1)
            mixed = torch.bmm(weights, self._of(self.values, layer, readers)[:, :span])
            return mixed.view(-1, shape.kv_heads * shape.group * width).index_select(
                0, layout.parts
            )
        seen = [self._look(layer, q, readers) for readers in layout.readers]
        top, total, mixed = (
            (torch.cat(each) if len(each) > 1 else each[0])
            .index_select(0, layout.parts)
            .unflatten(0, (rows, layout.most))
            for each in zip(*seen, strict=True)
        )
        factor = (top - top.amax(1, keepdim=True)).exp_()
        factor /= (total * factor).sum(1, keepdim=True)
        return mixed.mul_(factor[..., None]).sum(1).view(rows, -1)

    def _of(self, own: Sequence[Tensor], layer: int, readers: Readers) -> Tensor:
        """Return the blocks of readers, `[N * kv_heads, block, D]`."""
        some = own[layer]
        if readers.blocks is None:
            some = some[: len(readers.rows)]
        else:
            some = some.index_select(0, readers.blocks)
        return some.view(-1, self.block, self.shape.head_dim)

    def _scores(self, layer: int, q: Tensor, readers: Readers, span: int) -> Tensor:
        """Multiply queries with the first keys of blocks: `[N * kv_heads, U * group, span]`."""
        kv_heads, users = self.shape.kv_heads, readers.users
        asked = q.index_select(0, readers.rows)
        if users > 1:
            asked = asked.unflatten(0, (-1, users)).transpose(1, 2)
        asked = asked.reshape(-1, users * self.shape.group, self.shape.head_dim)
        keys = self._of(self.keys, layer, readers)[:, :span]
        scores = torch.bmm(asked, keys.transpose(1, 2))
        if readers.bias is not None:
            scores.view(-1, kv_heads, *scores.shape[1:]).add_(readers.bias[..., :span])
        return scores

    def _look(self, layer: int, q: Tensor, readers: Readers) -> tuple[Tensor, Tensor, Tensor]:
        """Return what rows see in the blocks of readers.

        Returns:
            Greatest score and sum of weights, `[N * U, heads]`, and the sum of values by weights,
            `[N * U, heads, D]`.
        """
        shape, users = self.shape, readers.users
        heads = shape.kv_heads * shape.group

        def by_row(x: Tensor) -> Tensor:
            """`[N * kv_heads, U * group, ...]` to `[N * U, heads, ...]`."""
            if users > 1:
                x = x.view(-1, shape.kv_heads, users, shape.group, *x.shape[2:]).transpose(1, 2)
            return x.reshape(-1, heads, *x.shape[4 if users > 1 else 2 :])

        scores = self._scores(layer, q, readers, self.block)
        top = scores.amax(-1, keepdim=True)
        weights = scores.sub_(top).exp_()
        mixed = torch.bmm(weights, self._of(self.values, layer, readers))
        return by_row(top[..., 0]), by_row(weights.sum(-1)), by_row(mixed)

    # -- memory ------------------------------------------------------------------------------------

    def _size(self) -> tuple[int, ...]:
        return (self.tables.pool.count, self.shape.kv_heads, self.block, self.shape.head_dim)

    def _grow(self, count: int) -> int:
        # By half at least, since all blocks are copied.
        own = self.tables.pool.count
        count = min(self._most, max(count, own + own // 2))
        for layers in (self.keys, self.values):
            for index, old in enumerate(layers):
                size = (count, *old.shape[1:])
                layers[index] = torch.zeros(size, dtype=self._dtype, device=self._device)
                layers[index][: old.shape[0]] = old
        return count

    def _places(self, blocks: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return rows of `[blocks * kv_heads * block, D]`, `[n, kv_heads]`."""
        heads = blocks[:, None] * len(self._heads) + self._heads
        return heads * self.block + positions[:, None] % self.block


def _readers(
    block: np.ndarray, row: np.ndarray, written: np.ndarray, tokens: int
) -> tuple[list[Readers], np.ndarray]:
    """Put blocks together that have about as many rows.

    Args:
        block: `[n]`, a block of a row.
        row: `[n]`, the row.
        written: `[n]`, tokens of the block that the row has written; all, if others share it.
        tokens: Of a full block.

    Returns:
        The readers, and `[n]` which of all their results is whose.
    """
    end = int(block.max(initial=NOBODY)) + 1
    users = np.bincount(block, minlength=end)
    part = np.zeros(len(block), np.int64)
    single = users[block] == 1
    alone = block[single]
    if 2 * len(alone) < end:
        # Most of the pool is not looked at: copying is cheaper than leaving it where it is.
        known = torch.from_numpy(np.append(NOBODY, alone))
        rows, filled = np.append(0, row[single]), np.append(0, written[single])
        part[single] = np.arange(1, len(rows))
    else:
        known, rows, filled = None, np.zeros(end, np.int64), np.full(end, tokens)
        rows[alone], filled[alone], part[single] = row[single], written[single], alone
    bias = np.where(np.arange(tokens) < filled[:, None], np.float32(0), np.float32(-np.inf))
    # The first result is that of no block: lower than all others, and a number.
    bias[0] = -1e30
    bias = torch.from_numpy(bias)[:, None, None]
    readers = [Readers(known, torch.from_numpy(rows), 1, bias)]
    base = len(rows)
    sizes = np.where(users > 1, 1 << np.ceil(np.log2(np.maximum(users, 1))).astype(np.int64), 0)
    for size in np.unique(sizes[sizes > 1]).tolist():
        those = np.flatnonzero(sizes == size)
        mine = np.flatnonzero(sizes[block] == size)
        mine = mine[np.argsort(block[mine], kind="stable")]
        at = np.searchsorted(those, block[mine])
        counts = users[those]
        number = np.arange(len(mine)) - np.repeat(counts.cumsum() - counts, counts)
        rows = np.zeros((len(those), size), np.int64)
        rows[at, number] = row[mine]
        part[mine] = base + at * size + number
        readers.append(Readers(torch.from_numpy(those), torch.from_numpy(rows.ravel()), size, None))
        base += len(those) * size
    return readers, part
