"""Kernels of Triton for what is done to logits on a GPU, where their memory is what limits.

Logits are read once to sum their exponentials, and once to turn them into gradients, which are
written in the format of the next product. The operations of torch read and write them eight times
for the same. Where Triton is missing, or does not pass a test when it is first used, torch is used.
"""

from __future__ import annotations

import logging
import math
from functools import cache

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_BLOCK = 4096
"""Logits that a program reads at a time."""


def kernels_for(logits: Tensor) -> LogitKernels | None:
    """Return the kernels for some logits; None where torch has to do."""
    if not logits.is_cuda or logits.dtype is not torch.float32:
        return None
    return _kernels_on(logits.device)


@cache
def _kernels_on(device: torch.device) -> LogitKernels | None:
    try:
        kernels = LogitKernels()
        kernels.check(device)
    except Exception as error:
        # Whatever a compiler may say: the slower way is right, too.
        logger.warning("log-probabilities are computed without Triton, more slowly: %s", error)
        return None
    return kernels


class LogitKernels:
    """The kernels, compiled when they are first used."""

    def __init__(self) -> None:
        from rlinf.models.causal_lm import logit_programs

        self._programs = logit_programs

    def log_sums(self, logits: Tensor) -> Tensor:
        """Log Σ exp z of each row.

        Args:
            logits: z, float32 `[R, V]`, contiguous.

        Returns:
            float32 `[R]`.
        """
        rows, size = logits.shape
        out = logits.new_empty(rows)
        if rows:
            self._programs.log_sums[(rows,)](logits, out, SIZE=size, BLOCK=_BLOCK, num_warps=8)
        return out

    def gradients(
        self, logits: Tensor, totals: Tensor, targets: Tensor, weights: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """W (1[target] − exp(z − log Σ exp z)): the gradient of w log p_target in z.

        Args:
            logits: z, float32 `[R, V]`, contiguous.
            totals: log Σ exp z, float32 `[R]`.
            targets: int64 `[R]`.
            weights: w, float32 `[R]`.
            dtype: format of the result.

        Returns:
            `[R, V]`.
        """
        rows, size = logits.shape
        out = torch.empty_like(logits, dtype=dtype)
        if rows:
            grid = (rows, math.ceil(size / _BLOCK))
            self._programs.gradients[grid](
                logits, totals, targets, weights, out, SIZE=size, BLOCK=_BLOCK, num_warps=8
            )
        return out

    def check(self, device: torch.device) -> None:
        """Compare with torch.

        Raises:
            RuntimeError: the results differ.
        """
        generator = torch.Generator().manual_seed(0)
        logits = (8 * torch.randn(3, _BLOCK + 77, generator=generator)).to(device)
        targets = torch.tensor([0, 5, _BLOCK + 76], device=device)
        weights = torch.tensor([1.0, -2.0, 0.0], device=device)
        totals = logits.logsumexp(-1)
        expected = -weights[:, None] * (logits - totals[:, None]).exp()
        expected[torch.arange(3, device=device), targets] += weights
        found = self.gradients(logits, totals, targets, weights, torch.float32)
        same = torch.allclose(self.log_sums(logits), totals, atol=1e-4)
        if not same or not torch.allclose(found, expected, atol=1e-5):
            raise RuntimeError("its results are not those of torch")
