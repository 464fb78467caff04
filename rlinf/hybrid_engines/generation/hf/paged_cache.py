"""A paged cache: keys and values in blocks that sequences take as they need them.

Memory. Blocks of `BLOCK` tokens lie in one tensor per layer, `[blocks, kv_heads, BLOCK, D]`, which
grows when more are needed. `BlockTables` says which row has which; samples of a group share the
full blocks of their prompt, and a sequence that begins like an earlier one uses what that one left.

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
import torch.nn.functional as F
from torch import Tensor

from rlinf.hybrid_engines.generation.hf.block_tables import BlockTables
from rlinf.hybrid_engines.generation.hf.blocks import NOBODY
from rlinf.hybrid_engines.generation.hf.kv_cache import (
    CacheShape,
    Decode,
    KVCache,
    Prefill,
    source_of,
)

BLOCK = 64
"""Tokens per block: with fewer, products of matrices are too small for a CPU."""

_FIRST = 16
"""Blocks at first."""


@dataclass
class Readers:
    """Blocks with about as many rows each, in one decoding step.

    Attributes:
        blocks: `[N]`, which; None is the first N of the pool.
        rows: `[N * U]`, the rows that look at each; some are there to fill up.
        users: U.
        bias: `[N, 1, 1, BLOCK]` of 0 and -inf, what is not written yet; None if all is.
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
        self.readers[0].bias.numpy()[self.newest, 0, 0, mine % BLOCK] = 0
        return True


@dataclass
class PagedDecode(Decode):
    """A decoding step over blocks.

    Attributes:
        places: `[B * kv_heads]`, where the new tokens go in `[blocks * kv_heads * BLOCK, D]`.
        layout: Who looks at what.
    """

    places: Tensor | None = None
    layout: Layout | None = None


class PagedCache(KVCache):
    """Blocks of `[kv_heads, BLOCK, D]` in the memory of the host, for the path `torch`.

    Args:
        shape: Its sizes; the capacity is rounded up to whole blocks.
        device: The CPU.
        dtype: Number format.
        most: Most tokens; None is what `slots` full rows take.
        reuse: Whether sequences use the blocks of earlier ones.

    Raises:
        ValueError: One sequence has more tokens than that.
    """

    def __init__(
        self,
        shape: CacheShape,
        device: torch.device,
        dtype: torch.dtype,
        most: int | None = None,
        reuse: bool = True,
    ):
        super().__init__(shape, device, dtype)
        per_row = -(-shape.capacity // BLOCK)
        blocks = shape.slots * per_row if most is None else most // BLOCK
        if blocks < per_row:
            raise ValueError(
                f"rollout.hf.max_cache_tokens is {most}: a sequence of {shape.capacity} tokens "
                f"takes {per_row * BLOCK}, in blocks of {BLOCK}; raise it, or shorten "
                "runner.seq_length"
            )
        self.tables = BlockTables(
            shape.slots, per_row * BLOCK, BLOCK, blocks + 1, _FIRST, reuse=reuse
        )
        self._heads = np.arange(shape.kv_heads)
        self._layout: Layout | None = None

    def free(self) -> None:
        """See the base."""
        super().free()
        self.tables.pool.forget()

    def claim(self, prefix: Sequence[int], rows: Sequence[int]) -> bool:
        """See the base."""
        enough = self.tables.claim(prefix, rows)
        self._grow()
        return enough

    def reused(self, row: int) -> int:
        """See the base."""
        return int(self.tables.read[row])

    def extend(self, positions: np.ndarray) -> bool:
        """See the base."""
        enough = self.tables.extend(positions)
        self._grow()
        return enough

    def release(self, row: int, tokens: Sequence[int]) -> None:
        """See the base."""
        self.tables.keep(tokens, row)
        self.tables.release(row)

    def forget(self) -> None:
        """See the base."""
        self.tables.pool.forget()

    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """See the base."""
        self.tables.move(source, target)

    # -- prompts -----------------------------------------------------------------------------------

    def plan(self, prefixes: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Prefill:
        """Lay out what has to be read of sequences, and let later ones use their blocks."""
        tables = self.tables
        begins = [self.reused(each[0]) for each in rows]
        sizes = [len(prefix) - begin for prefix, begin in zip(prefixes, begins, strict=True)]
        count, longest = len(prefixes), max(sizes)
        tokens = np.zeros((count, longest), np.int64)
        kept, places = [], []
        for index, (prefix, begin, size) in enumerate(zip(prefixes, begins, sizes, strict=True)):
            tokens[index, :size] = prefix[begin:]
            full = len(prefix) - len(prefix) % BLOCK
            # Full blocks are written once, the rest for every row.
            for number, row in enumerate(rows[index]):
                at = np.arange(full if number else begin, len(prefix))
                kept.append(index * longest + at - begin)
                places.append(self._places(tables.table[row, at // BLOCK], at))
            tables.keep(prefix, rows[index][0])
        positions = np.array(begins)[:, None] + np.arange(longest)
        last = np.arange(count) * longest + np.array(sizes) - 1
        return Prefill(
            tokens=torch.from_numpy(tokens).view(-1),
            positions=torch.from_numpy(np.minimum(positions, self.shape.capacity - 1)).view(-1),
            last=torch.from_numpy(last),
            rows=torch.tensor([each[0] for each in rows]),
            source=source_of(rows, self._device),
            longest=longest,
            begins=torch.tensor(begins) if any(begins) else None,
            kept=torch.from_numpy(np.concatenate(kept)),
            places=torch.from_numpy(np.concatenate(places).reshape(-1)),
        )

    def prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Prefill) -> Tensor:
        """See the base."""
        if batch.begins is None:
            return super().prefill(layer, q, k, v, batch)
        count, longest, shape = batch.last.shape[0], batch.longest, self.shape
        self._write(layer, k, v, batch)
        table = self.tables.table[batch.rows.numpy()]
        span = -(-int(batch.positions.max() + 1) // BLOCK)
        blocks = torch.from_numpy(table[:, :span]).reshape(-1)
        keys, values = (
            own[layer]
            .index_select(0, blocks)
            .view(count, span, shape.kv_heads, BLOCK, -1)
            .transpose(1, 2)
            .reshape(count, shape.kv_heads, span * BLOCK, -1)
            .repeat_interleave(shape.group, 1)
            for own in (self.keys, self.values)
        )
        seen = torch.arange(span * BLOCK) <= batch.positions.view(count, longest, 1)
        q = q.view(count, longest, -1, shape.head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None])
        return out.transpose(1, 2).reshape(count * longest, -1)

    def _keep(self, layer: int, k: Tensor, v: Tensor, batch: Prefill) -> None:
        self._write(layer, *(x.transpose(1, 2).flatten(0, 1) for x in (k, v)), batch)

    def _write(self, layer: int, k: Tensor, v: Tensor, batch: Prefill) -> None:
        for own, new in ((self.keys[layer], k), (self.values[layer], v)):
            own.view(-1, new.shape[-1]).index_copy_(0, batch.places, new[batch.kept].flatten(0, 1))

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
        counts = np.where(tables.taken[:rows], positions // BLOCK + 1, 0)
        row = np.repeat(np.arange(rows), counts)
        ends = counts.cumsum()
        index = np.arange(len(row)) - np.repeat(ends - counts, counts)
        block = tables.table[row, index]
        written = np.minimum(positions[row] + 1 - index * BLOCK, BLOCK)
        readers, part = _readers(block, row, written)
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
            span = min(step.span, BLOCK)
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
        """Return the blocks of readers, `[N * kv_heads, BLOCK, D]`."""
        some = own[layer]
        if readers.blocks is None:
            some = some[: len(readers.rows)]
        else:
            some = some.index_select(0, readers.blocks)
        return some.view(-1, BLOCK, self.shape.head_dim)

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

        scores = self._scores(layer, q, readers, BLOCK)
        top = scores.amax(-1, keepdim=True)
        weights = scores.sub_(top).exp_()
        mixed = torch.bmm(weights, self._of(self.values, layer, readers))
        return by_row(top[..., 0]), by_row(weights.sum(-1)), by_row(mixed)

    # -- memory ------------------------------------------------------------------------------------

    def _size(self) -> tuple[int, ...]:
        return (self.tables.pool.count, self.shape.kv_heads, BLOCK, self.shape.head_dim)

    def _grow(self) -> None:
        """Take the memory of the blocks that the pool has more."""
        if not self.keys or self.keys[0].shape[0] == self.tables.pool.count:
            return
        for layers in (self.keys, self.values):
            for index, old in enumerate(layers):
                new = torch.zeros(self._size(), dtype=self._dtype, device=self._device)
                new[: old.shape[0]] = old
                layers[index] = new

    def _places(self, blocks: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return where tokens of blocks go, `[n, kv_heads]`."""
        return (blocks[:, None] * len(self._heads) + self._heads) * BLOCK + positions[
            :, None
        ] % BLOCK


def _readers(
    block: np.ndarray, row: np.ndarray, written: np.ndarray
) -> tuple[list[Readers], np.ndarray]:
    """Put blocks together that have about as many rows.

    Args:
        block: `[n]`, a block of a row.
        row: `[n]`, the row.
        written: `[n]`, tokens of the block that the row has written; all, if others share it.

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
        known, rows, filled = None, np.zeros(end, np.int64), np.full(end, BLOCK)
        rows[alone], filled[alone], part[single] = row[single], written[single], alone
    bias = np.where(np.arange(BLOCK) < filled[:, None], np.float32(0), np.float32(-np.inf))
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
