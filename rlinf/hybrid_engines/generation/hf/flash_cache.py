"""A cache for the flash kernels of CUDA, which take the length of each row instead of a mask."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from rlinf.hybrid_engines.generation.hf.kv_cache import (
    Decode,
    KVCache,
    Prefill,
    move_rows,
    source_of,
)


class FlashCache(KVCache):
    """Rows of `[capacity, kv_heads, D]` for the flash kernels of CUDA, which take lengths."""

    packed = True
    fixed_span = True

    @staticmethod
    def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
        """Say why these kernels cannot be used, or return None."""
        if device.type != "cuda":
            return "the device is not CUDA"
        if dtype not in (torch.bfloat16, torch.float16):
            return f"the format is {dtype}; bf16 and fp16 have kernels"
        if head_dim % 8 or head_dim > 256:
            return f"heads have {head_dim} numbers, not a multiple of 8 up to 256"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "the device is older than Ampere"
        if _varlen_attn() is None and not _operation_takes_lengths():
            return f"the flash kernels of torch {torch.__version__} do not take lengths"
        return None

    def plan(self, prefixes: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Prefill:
        """Lay out sequences one after the other."""
        lengths = [len(prefix) for prefix in prefixes]
        begins = [0, *itertools.accumulate(lengths)]
        targets = [
            (begin, length, row * self.shape.capacity)
            for begin, length, each in zip(begins, lengths, rows, strict=False)
            for row in each
        ]
        kept = np.concatenate([np.arange(begin, begin + size) for begin, size, _ in targets])
        places = np.concatenate([np.arange(place, place + size) for _, size, place in targets])
        positions = np.concatenate([np.arange(size) for size in lengths])

        def tensor(values: Sequence[int] | np.ndarray, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.as_tensor(values, dtype=dtype, device=self._device)

        return Prefill(
            tokens=tensor(list(itertools.chain(*prefixes))),
            positions=tensor(positions),
            last=tensor(begins[1:]) - 1,
            rows=tensor(list(itertools.chain(*rows))),
            source=source_of(rows, self._device),
            longest=max(lengths),
            ends=tensor(begins, torch.int32),
            kept=tensor(kept),
            places=tensor(places),
        )

    def prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Prefill) -> Tensor:
        """See the base."""
        ends, longest = batch.ends, batch.longest
        self._keep(layer, k, v, batch)
        return _attend(q, k, v, ends, ends, longest, longest, causal=True).flatten(1)

    def prepare(self, step: Decode) -> Decode:
        """Compute places and lengths of all rows."""
        rows, capacity = step.positions.shape[0], self.shape.capacity
        begins = torch.arange(rows + 1, device=self._device, dtype=torch.int32)
        places = torch.arange(rows, device=self._device) * capacity + step.positions
        used = (step.positions + 1).to(torch.int32)
        return Decode(step.positions, step.span, (places, begins, begins * capacity, used))

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: Decode) -> Tensor:
        """See the base."""
        places, begins, rows, used = step.prepared
        keys, values, capacity = self.keys[layer], self.values[layer], self.shape.capacity
        keys.index_copy_(0, places, k)
        values.index_copy_(0, places, v)
        last = q.shape[0] * capacity
        out = _attend(q, keys[:last], values[:last], begins, rows, 1, capacity, used=used)
        return out.flatten(1)

    def _size(self) -> tuple[int, ...]:
        shape = self.shape
        return (shape.slots * shape.capacity, shape.kv_heads, shape.head_dim)

    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """See the base."""
        shape = (self.shape.slots, self.shape.capacity)
        layers = (*self.keys, *self.values)
        move_rows([layer.unflatten(0, shape)[:, :length] for layer in layers], source, target)

    def _keep(self, layer: int, k: Tensor, v: Tensor, batch: Prefill) -> None:
        self.keys[layer].index_copy_(0, batch.places, k[batch.kept])
        self.values[layer].index_copy_(0, batch.places, v[batch.kept])


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    begins_q: Tensor,
    begins_k: Tensor,
    longest_q: int,
    longest_k: int,
    *,
    causal: bool = False,
    used: Tensor | None = None,
) -> Tensor:
    """Attention of sequences that lie end to end.

    Args:
        q: `[N, heads, D]`.
        k: `[M, kv_heads, D]`.
        v: like `k`.
        begins_q: Beginnings of the sequences in `q`, and the end of the last, int32 `[n + 1]`.
        begins_k: The same for `k`.
        longest_q: Most tokens of a sequence in `q`.
        longest_k: The same for `k`.
        causal: A token sees those before it only.
        used: Tokens of each sequence in `k` that count, int32 `[n]`; None is all.

    Returns:
        `[N, heads, D]`.
    """
    window = (-1, 0 if causal else -1)
    where = (begins_q, begins_k, longest_q, longest_k)
    varlen_attn = _varlen_attn()
    if varlen_attn is not None:
        gqa = q.shape[1] != k.shape[1]
        return varlen_attn(q, k, v, *where, window_size=window, enable_gqa=gqa, seqused_k=used)
    # Before torch 2.12 only the operation beneath it can be told lengths.
    out = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        *where,
        0.0,
        causal,
        False,
        window_size_left=window[0],
        window_size_right=window[1],
        seqused_k=used,
    )
    return out[0]


@cache
def _varlen_attn() -> Callable[..., Tensor] | None:
    """Return the kernel of torch, if it can be told the lengths of sequences."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"seqused_k", "enable_gqa"} <= set(known) else None


def _operation_takes_lengths() -> bool:
    operation = getattr(torch.ops.aten, "_flash_attention_forward", None)
    return operation is not None and "seqused_k" in str(operation.default._schema)
