"""Keys and values of all sequences in the making, and how a layer attends to them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a cache.

    Attributes:
        layers: Of the model.
        slots: Rows, each for one sequence.
        kv_heads: Heads of keys and values.
        group: Query heads per key head.
        head_dim: Numbers per head.
        capacity: Tokens per row.
    """

    layers: int
    slots: int
    kv_heads: int
    group: int
    head_dim: int
    capacity: int


@dataclass
class Prefill:
    """Token sequences to be read at once, and the rows that get their keys and values.

    P sequences, either padded on the right to L each, or packed one after the other: T tokens.

    Attributes:
        tokens: `[T]`.
        positions: `[T]`.
        last: `[P]`, where in T the last token of each sequence is.
        rows: `[R]`, the rows of the cache to write.
        source: `[R]`, which of the P sequences goes there.
        longest: Tokens of the longest sequence.
        ends: `[P + 1]` int32, where sequences begin and end in T, when they are packed.
        kept: `[K]`, packed or paged: which of the T tokens to write, once per row.
        places: `[K]`, packed: where in the cache, row * capacity + position; paged: as the cache
            counts.
        blocks: `[P, N]`, paged: the blocks of each sequence, as the cache counts them, if tokens
            of any are there already; None if not.
        seen: `[P, 1, L, N * block]`, paged: which tokens of these blocks each token sees.
    """

    tokens: Tensor
    positions: Tensor
    last: Tensor
    rows: Tensor
    source: Tensor
    longest: int
    ends: Tensor | None = None
    kept: Tensor | None = None
    places: Tensor | None = None
    blocks: Tensor | None = None
    seen: Tensor | None = None


@dataclass
class Decode:
    """One new token in each of the first B rows.

    Attributes:
        positions: `[B]` int64, where it goes.
        span: Most tokens of any row, the new one included.
        prepared: What a cache computes once for all layers.
    """

    positions: Tensor
    span: int
    prepared: tuple[Tensor, ...] = ()


class KVCache(ABC):
    """Memory for keys and values, and how a layer attends to them.

    By default rows are contiguous and their memory is taken at once: a row always has room. A paged
    cache has room as long as there are blocks; it is asked by `claim` before a sequence is read,
    by `extend` before each decoding step, and told by `release` when a row ends.

    Args:
        shape: Its sizes.
        device: Where it is.
        dtype: Number format.

    Attributes:
        keys: Of each layer, by default `[slots, kv_heads, capacity, D]`.
        values: Likewise.
        table: Where the blocks of each row are, for kernels on the device that look them up; None
            if rows are contiguous or the host looks them up.
    """

    table: Tensor | None = None
    packed = False
    """Whether prefills come packed instead of padded."""
    fixed_span = False
    """Whether a decoding step does not depend on the length of the longest row."""

    def __init__(self, shape: CacheShape, device: torch.device, dtype: torch.dtype):
        self.shape = shape
        self._device = device
        self._dtype = dtype
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @staticmethod
    def bytes_per_slot(shape: CacheShape, dtype: torch.dtype) -> int:
        """Memory of one row of all layers."""
        numbers = shape.layers * 2 * shape.kv_heads * shape.capacity * shape.head_dim
        return numbers * dtype.itemsize

    def allocate(self) -> None:
        """Take the memory."""
        # Zeros, since 0 * NaN is NaN where a kernel masks by multiplying.
        for layers in (self.keys, self.values):
            for _ in range(self.shape.layers):
                layers.append(torch.zeros(self._size(), dtype=self._dtype, device=self._device))

    def free(self) -> None:
        """Give the memory back."""
        self.keys, self.values = [], []

    @property
    def nbytes(self) -> int:
        """Memory that is taken."""
        return sum(layer.nbytes for layer in (*self.keys, *self.values))

    def claim(self, prefix: Sequence[int], rows: Sequence[int]) -> bool:
        """Take room for rows that begin with the same tokens; False takes none."""
        return True

    def reused(self, row: int) -> int:
        """Return how many tokens of a row were there when it was claimed."""
        return 0

    def extend(self, positions: np.ndarray) -> bool:
        """Take room for the next token of all rows, `[slots]` positions; False takes none."""
        return True

    def release(self, row: int, tokens: Sequence[int]) -> None:  # noqa: B027 - rows are always there
        """Give the room of a row back.

        Args:
            row: Which.
            tokens: What was read there, as far as others may use it.
        """

    def forget(self) -> None:  # noqa: B027 - rows are read anew
        """Let nobody use what was read before: the weights have changed."""

    def _size(self) -> tuple[int, ...]:
        """Shape of the keys of a layer, and of its values."""
        return (self.shape.slots, self.shape.kv_heads, self.shape.capacity, self.shape.head_dim)

    @abstractmethod
    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Copy the first `length` tokens of rows to other rows; the two do not overlap."""

    def plan(self, prefixes: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Prefill:
        """Lay out sequences to be read, each for some rows."""
        device, longest = self._device, max(map(len, prefixes))
        flat: list[int] = []
        for prefix in prefixes:
            flat += prefix
            flat += [0] * (longest - len(prefix))
        count = len(prefixes)
        lengths = torch.tensor([len(prefix) for prefix in prefixes], device=device)
        return Prefill(
            tokens=torch.tensor(flat, device=device),
            positions=torch.arange(longest, device=device).repeat(count),
            last=torch.arange(count, device=device) * longest + lengths - 1,
            rows=torch.tensor(list(itertools.chain(*rows)), device=device),
            source=source_of(rows, device),
            longest=longest,
        )

    def prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Prefill) -> Tensor:
        """Attend within the sequences of a batch and keep their keys and values.

        Args:
            layer: Its index.
            q: `[T, heads, D]`, turned.
            k: `[T, kv_heads, D]`, turned.
            v: `[T, kv_heads, D]`.
            batch: The layout.

        Returns:
            `[T, heads * D]`.
        """
        self._keep(layer, k, v, batch)
        count = batch.last.shape[0]
        q, k, v = (x.view(count, batch.longest, -1, x.shape[-1]).transpose(1, 2) for x in (q, k, v))
        group = self.shape.group
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        # Padding is on the right, so that no token sees it.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(count * batch.longest, -1)

    def prepare(self, step: Decode) -> Decode:
        """Compute what all layers of a decoding step share."""
        return step

    @abstractmethod
    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: Decode) -> Tensor:
        """Keep the keys and values of one token per row and attend to all until there.

        Args:
            layer: Its index.
            q: `[B, heads, D]`, turned.
            k: `[B, kv_heads, D]`, turned.
            v: `[B, kv_heads, D]`.
            step: What `prepare` returned.

        Returns:
            `[B, heads * D]`.
        """

    @abstractmethod
    def _keep(self, layer: int, k: Tensor, v: Tensor, batch: Prefill) -> None:
        """Write keys and values `[T, kv_heads, D]` into the rows of a batch."""


class SdpaCache(KVCache):
    """Rows of `[kv_heads, capacity, D]`, attended to with a mask: for any device and format."""

    def prepare(self, step: Decode) -> Decode:
        """Compute the mask `[B, 1, 1, span]` and where each row's token goes."""
        places = torch.arange(step.span, device=step.positions.device)
        mask = (places <= step.positions[:, None])[:, None, None, :]
        sizes = (-1, self.shape.kv_heads, 1, self.shape.head_dim)
        return Decode(
            step.positions, step.span, (mask, step.positions[:, None, None, None].expand(sizes))
        )

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: Decode) -> Tensor:
        """See the base."""
        mask, places = step.prepared
        rows, shape = q.shape[0], self.shape
        keys, values = self.keys[layer][:rows], self.values[layer][:rows]
        keys.scatter_(2, places, k[:, :, None])
        values.scatter_(2, places, v[:, :, None])
        # The query heads of a key head are like that many queries: nothing has to be repeated.
        q = q.view(rows, shape.kv_heads, shape.group, shape.head_dim)
        out = F.scaled_dot_product_attention(
            q,
            keys[:, :, : step.span],
            values[:, :, : step.span],
            attn_mask=mask.expand(-1, -1, shape.group, -1),
        )
        return out.reshape(rows, -1)

    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """See the base."""
        parts = [layer[:, :, :length] for layer in (*self.keys, *self.values)]
        move_rows(parts, source, target)

    def _keep(self, layer: int, k: Tensor, v: Tensor, batch: Prefill) -> None:
        for own, new in ((self.keys[layer], k), (self.values[layer], v)):
            new = new.unflatten(0, (-1, batch.longest)).transpose(1, 2)
            own[:, :, : batch.longest].index_copy_(0, batch.rows, new[batch.source])


class BmmCache(SdpaCache):
    """The same rows, attended to with batched matrix products.

    A CPU takes half as long for these as for scaled_dot_product_attention if each row has a single
    query.
    """

    def prepare(self, step: Decode) -> Decode:
        """Compute a bias `[B, 1, 1, span]` of 0 and -inf, and where tokens go, `[B * kv_heads]`.

        The latter are rows of the cache seen as `[slots * kv_heads * capacity, D]`.
        """
        positions, shape = step.positions, self.shape
        beyond = torch.arange(step.span, device=positions.device) > positions[:, None]
        bias = torch.zeros(beyond.shape, dtype=self._dtype, device=positions.device)
        bias = bias.masked_fill_(beyond, -torch.inf)[:, None, None, :]
        heads = torch.arange(len(positions) * shape.kv_heads, device=positions.device)
        places = heads * shape.capacity + positions.repeat_interleave(shape.kv_heads)
        return Decode(positions, step.span, (bias, places))

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: Decode) -> Tensor:
        """See the base."""
        bias, places = step.prepared
        rows, shape = q.shape[0], self.shape
        width, batch = shape.head_dim, rows * shape.kv_heads
        for own, new in ((self.keys[layer], k), (self.values[layer], v)):
            own.view(-1, width).index_copy_(0, places, new.reshape(batch, width))
        keys, values = (
            own[layer].view(-1, shape.capacity, width)[:batch, : step.span]
            for own in (self.keys, self.values)
        )
        q = q.reshape(batch, shape.group, width) * width**-0.5
        scores = torch.bmm(q, keys.transpose(1, 2)).view(rows, shape.kv_heads, shape.group, -1)
        weights = scores.add_(bias).softmax(-1).view(batch, shape.group, -1)
        return torch.bmm(weights, values).view(rows, -1)


def source_of(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return which sequence each row gets, `[R]`, when each sequence has some rows."""
    counts = torch.tensor([len(each) for each in rows], device=device)
    return torch.arange(len(rows), device=device).repeat_interleave(counts)


def move_rows(parts: Sequence[Tensor], source: Sequence[int], target: Sequence[int]) -> None:
    """Copy rows of tensors over other rows; the two sets do not overlap."""
    device = parts[0].device
    src, dst = torch.tensor(source, device=device), torch.tensor(target, device=device)
    for part in parts:
        part.index_copy_(0, dst, part.index_select(0, src))
