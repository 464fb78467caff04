"""Additions with a digit-by-digit chain of thought: small enough to learn from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import PromptDataset, Record, Split
from rlinf.data.hashing import mixed

ALPHABET = "0123456789+=;"
"""Every character of a problem and of its solution."""


def solution(a: int, b: int) -> str:
    """Return the worked solution of `a + b`: a sum per digit, with the carry, then the answer.

    `47+85=` is solved by `7+5=12;4+8+1=13;132`: digits from the right, each with the carry of the
    one before it, which is left out at the first.
    """
    steps, carry = [], None
    for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
        total = int(x) + int(y) + (carry or 0)
        steps.append(f"{x}+{y}={total};" if carry is None else f"{x}+{y}+{carry}={total};")
        carry = total // 10
    return "".join(steps) + str(a + b)


@register_dataset("arithmetic")
class ArithmeticDataset(PromptDataset):
    """All additions of two numbers of `data.digits` digits.

    A hash of the unordered pair says which problems are held out for validation, so neither
    `a + b` nor `b + a` of a held-out problem is ever trained on. The split does not depend on the
    seed.
    """

    def __init__(self, cfg: Any, split: Split, seed: int) -> None:
        super().__init__(cfg, split, seed)
        held_out, pairs = _problems(cfg.digits, cfg.held_out)
        chosen = np.flatnonzero(held_out == (split == "val"))
        if split == "val" and cfg.val_size is not None:
            # Any of them will do, but not always the smallest numbers.
            order = np.argsort(mixed(chosen.astype(np.uint64)), kind="stable")
            chosen = np.sort(chosen[order[: cfg.val_size]])
        if not len(chosen):
            raise ValueError(
                f"data.held_out={cfg.held_out} leaves no {split} problem of {cfg.digits} digits"
            )
        self._pairs = pairs[chosen]

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self._pairs)

    def __getitem__(self, index: int) -> Record:
        """Problem `index`."""
        a, b = map(int, self._pairs[index])
        return Record(f"{a}+{b}=", str(a + b), "arithmetic", {}, solution(a, b))

    def fingerprint(self) -> str:
        """Return the digits and number of problems."""
        return f"arithmetic {self.cfg.digits} {self.cfg.held_out} {len(self)}"


def _problems(digits: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which pairs of numbers are held out, bool `[N]`, and all pairs, int64 `[N, 2]`."""
    numbers = np.arange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
    a, b = (side.ravel() for side in np.meshgrid(numbers, numbers, indexing="ij"))
    unordered = np.maximum(a, b).astype(np.uint64) * np.uint64(1 << 20)
    unordered += np.minimum(a, b).astype(np.uint64)
    uniform = mixed(unordered) / np.float64(2**64)
    return uniform < share, np.stack([a, b], axis=1)
