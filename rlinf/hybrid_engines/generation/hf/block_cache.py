"""What all paged caches have in common: rows take blocks, and prompts are read into them.

`BlockTables` says which row has which blocks; samples of a group share the full blocks of their
prompt, and a sequence that begins like an earlier one uses what that one left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlinf.hybrid_engines.generation.hf.block_tables import BlockTables
from rlinf.hybrid_engines.generation.hf.kv_cache import CacheShape, KVCache, Prefill, source_of


class BlockCache(KVCache):
    """Keys and values in blocks.

    Args:
        shape: Its sizes; the capacity is rounded up to whole blocks.
        device: Where it is.
        dtype: Number format.
        most: Most tokens; None is what `slots` full rows take.
        reuse: Whether sequences use the blocks of earlier ones.

    Attributes:
        tables: Which row has which blocks.

    Raises:
        ValueError: One sequence has more tokens than that.
    """

    block = 64
    """Tokens per block: with fewer, products of matrices are too small."""

    def __init__(
        self,
        shape: CacheShape,
        device: torch.device,
        dtype: torch.dtype,
        most: int | None = None,
        reuse: bool = True,
    ):
        super().__init__(shape, device, dtype)
        per_row = -(-shape.capacity // self.block)
        blocks = shape.slots * per_row if most is None else most // self.block
        if blocks < per_row:
            raise ValueError(
                f"rollout.hf.max_cache_tokens is {most}: a sequence of {shape.capacity} tokens "
                f"takes {per_row * self.block}, in blocks of {self.block}; raise it, or shorten "
                "runner.seq_length"
            )
        self._per_row = per_row
        # One more is that of rows without a sequence.
        self._most = blocks + 1
        self._reuse = reuse

    def _new_tables(self, count: int) -> BlockTables:
        """Return the tables of a cache without sequences that has memory for so many blocks."""
        return BlockTables(
            self.shape.slots,
            self._per_row * self.block,
            self.block,
            self._most,
            count,
            self._reuse,
            self._grow,
        )

    @abstractmethod
    def _grow(self, count: int) -> int:
        """Take the memory of `count` blocks in all, at least; return of how many it is taken."""

    # -- rows --------------------------------------------------------------------------------------

    def free(self) -> None:
        """See the base."""
        super().free()
        self.tables.pool.forget()

    def claim(self, prefix: Sequence[int], rows: Sequence[int]) -> bool:
        """See the base."""
        return self.tables.claim(prefix, rows)

    def reused(self, row: int) -> int:
        """See the base."""
        return int(self.tables.read[row])

    def extend(self, positions: np.ndarray) -> bool:
        """See the base."""
        return self.tables.extend(positions)

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
        tables, device = self.tables, self._device
        begins = [self.reused(each[0]) for each in rows]
        sizes = [len(prefix) - begin for prefix, begin in zip(prefixes, begins, strict=True)]
        count, longest = len(prefixes), max(sizes)
        tokens = np.zeros((count, longest), np.int64)
        kept, places = [], []
        for index, (prefix, begin, size) in enumerate(zip(prefixes, begins, sizes, strict=True)):
            tokens[index, :size] = prefix[begin:]
            full = len(prefix) - len(prefix) % self.block
            # Full blocks are written once, the rest for every row.
            for number, row in enumerate(rows[index]):
                at = np.arange(full if number else begin, len(prefix))
                kept.append(index * longest + at - begin)
                places.append(self._places(tables.table[row, at // self.block], at))
            tables.keep(prefix, rows[index][0])
        positions = np.array(begins)[:, None] + np.arange(longest)
        last = np.arange(count) * longest + np.array(sizes) - 1

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        batch = Prefill(
            tokens=tensor(tokens).view(-1),
            positions=tensor(np.minimum(positions, self.shape.capacity - 1)).view(-1),
            last=tensor(last),
            rows=torch.tensor([each[0] for each in rows], device=device),
            source=source_of(rows, device),
            longest=longest,
            kept=tensor(np.concatenate(kept)),
            places=tensor(np.concatenate(places).reshape(-1)),
        )
        if any(begins):
            span = max(-(-len(prefix) // self.block) for prefix in prefixes)
            batch.blocks = tensor(self._known(tables.table[[each[0] for each in rows], :span]))
            ends = batch.positions.view(count, 1, longest, 1)
            batch.seen = torch.arange(span * self.block, device=device) <= ends
        return batch

    def prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Prefill) -> Tensor:
        """See the base."""
        if batch.blocks is None:
            return super().prefill(layer, q, k, v, batch)
        self._keep(layer, k, v, batch)
        shape = self.shape
        keys, values = self._read(layer, batch.blocks)
        if shape.group > 1:
            keys, values = (x.repeat_interleave(shape.group, 1) for x in (keys, values))
        q = q.view(batch.last.shape[0], batch.longest, -1, shape.head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=batch.seen)
        return out.transpose(1, 2).reshape(batch.tokens.shape[0], -1)

    @abstractmethod
    def _places(self, blocks: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return where tokens of blocks go, `[n]` or more, for `_keep`."""

    def _known(self, blocks: np.ndarray) -> np.ndarray:
        """Return the numbers of blocks as `_read` takes them."""
        return blocks

    @abstractmethod
    def _read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copy keys and values of blocks `[P, N]` into `[P, kv_heads, N * block, D]` each."""
