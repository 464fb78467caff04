"""The sums of a checksum on CUDA, in Triton: each word is read once, and nothing is written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _row_sums(rows, weights, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, SIZE, BLOCK):
        words = tl.load(rows + row * SIZE + start + place).to(tl.int64)
        total += words * tl.load(weights + start + place)
    tl.store(out + row, tl.sum(total, 0))


def row_sums(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum of words times weights, modulo 2^64.

    Args:
        rows: int32 `[n, size]`, contiguous; size is a multiple of 4,096.
        weights: int64 `[size]`.

    Returns:
        int64 `[n]`.
    """
    out = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    _row_sums[(len(rows),)](rows, weights, out, rows.shape[1], _BLOCK)
    return out
