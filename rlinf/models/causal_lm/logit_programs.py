"""The programs of `logit_kernels`; importing this needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log_sums(logits, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Log Σ exp of a row, in one pass: the sum is scaled whenever a greater logit comes."""
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * SIZE
    greatest = float("-inf")
    total = 0.0
    for start in range(0, SIZE, BLOCK):
        place = start + tl.arange(0, BLOCK)
        z = tl.load(begin + place, mask=place < SIZE, other=float("-inf"))
        new = tl.maximum(greatest, tl.max(z, 0))
        total = total * tl.exp(greatest - new) + tl.sum(tl.exp(z - new), 0)
        greatest = new
    tl.store(out + row, greatest + tl.log(total))


@triton.jit
def gradients(logits, totals, targets, weights, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """The gradient of a weighted log-probability in a block of the logits of a row."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    z = tl.load(logits + row * SIZE + place, mask=inside, other=float("-inf"))
    weight = tl.load(weights + row)
    found = -weight * tl.exp(z - tl.load(totals + row))
    found = tl.where(place == tl.load(targets + row), found + weight, found)
    tl.store(out + row * SIZE + place, found.to(out.dtype.element_ty), mask=inside)
