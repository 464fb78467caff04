"""Mean and variance of a stream of data, exact over batches and ranks.

Batches are merged with the parallel formula of Chan, Golub and LeVeque (1979). For two sets with
counts `n_a`, `n_b`, means `m_a`, `m_b` and sums of squared deviations `S_a`, `S_b`:

    d = m_b - m_a;  n = n_a + n_b
    m = m_a + d n_b / n
    S = S_a + S_b + d^2 n_a n_b / n
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlinf.utils.precise_buffers import PreciseBuffers

AllReduce = Callable[[Tensor], Any]
"""Sums a float64 tensor over all ranks, in place or by returning the sum."""


class Moments(NamedTuple):
    """Sufficient statistics of a set of values, in float64.

    Attributes:
        count: Number of values, [].
        mean: Their mean, [*shape].
        m2: Sum of squared deviations from the mean, [*shape].
    """

    count: Tensor
    mean: Tensor
    m2: Tensor


def moments_of(values: Tensor, mask: Tensor | None = None) -> Moments:
    """Return the moments of the rows of a batch.

    Args:
        values: Any real type, [n, *shape].
        mask: Rows to use, [n] bool; None uses all. What masked rows hold does not matter.

    Returns:
        The moments over the rows; all zero when no row is used.
    """
    rows = (values if mask is None else values[mask]).double()
    count = torch.tensor(float(len(rows)), dtype=torch.float64, device=values.device)
    if len(rows) == 0:
        zero = torch.zeros(values.shape[1:], dtype=torch.float64, device=values.device)
        return Moments(count, zero, zero.clone())
    mean = rows.mean(0)
    return Moments(count, mean, (rows - mean).square_().sum(0))


def merge(first: Moments, second: Moments) -> Moments:
    """Return the moments of the union of two sets."""
    count = first.count + second.count
    share = second.count / count.clamp(min=1.0)
    delta = second.mean - first.mean
    m2 = first.m2 + second.m2 + delta.square() * (first.count * share)
    return Moments(count, first.mean + delta * share, m2)


def merge_over_ranks(moments: Moments, all_reduce: AllReduce) -> Moments:
    """Return the moments of the union of all ranks' sets, the same on every rank.

    The global mean is found first and the deviations are summed around it, so that nothing
    cancels: the result does not depend on how the data is split.

    Args:
        moments: Those of this rank; a rank without data takes part with count 0.
        all_reduce: Sums a tensor over ranks; it is called twice.

    Returns:
        The global moments.
    """
    count, mean, m2 = moments
    sums = _reduced(torch.cat([count.reshape(1), (count * mean).reshape(-1)]), all_reduce)
    total = sums[0]
    center = (sums[1:] / total.clamp(min=1.0)).reshape(mean.shape)
    around = m2 + count * (mean - center).square()
    return Moments(total, center, _reduced(around, all_reduce))


def _reduced(tensor: Tensor, all_reduce: AllReduce) -> Tensor:
    result = all_reduce(tensor)
    return result if isinstance(result, Tensor) else tensor


class RunningStats(PreciseBuffers):
    """Mean and population variance of everything seen so far.

    The state is three float64 buffers, which are saved and moved like other buffers but keep
    their precision when the module is cast to another number format.

    Attributes:
        mean: [*shape], 0 before the first value.
        var: [*shape], 1 before the first value.
        count: Values seen, [].
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: int | Sequence[int] = ()) -> None:
        """Start empty.

        Args:
            shape: Shape of one value.
        """
        super().__init__()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """Standard deviation, [*shape]."""
        return self.var.sqrt()

    @torch.no_grad()
    def update(
        self, values: Tensor, mask: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Add a batch.

        Args:
            values: [*batch, *shape] with any number of batch dimensions.
            mask: Which values count: [*batch], or with trailing dimensions of which any that is
                true will do; None counts all.
            all_reduce: Sums a tensor over ranks. All ranks must then call this method, even
                those without data, and all end with the same state.

        Raises:
            ValueError: The values that count hold NaN or infinity, or a shape does not fit. The
                state is unchanged then, on all ranks.
        """
        shape = self.mean.shape
        batch = values.shape[: values.dim() - len(shape)]
        if values.shape[len(batch) :] != shape or not batch:
            raise ValueError(
                f"values have shape {tuple(values.shape)}, not [batch..., "
                f"{', '.join(map(str, shape))}]"
            )
        rows = values.reshape(-1, *shape).to(self.mean.device)
        keep = None if mask is None else self._row_mask(mask, len(rows))
        new = moments_of(rows, keep)
        if all_reduce is not None:
            new = merge_over_ranks(new, all_reduce)
        self._check_finite(new)
        merged = merge(Moments(self.count, self.mean, self.var * self.count), new)
        if merged.count > 0:
            self.count.copy_(merged.count)
            self.mean.copy_(merged.mean)
            self.var.copy_(merged.m2 / merged.count)

    def _row_mask(self, mask: Tensor, rows: int) -> Tensor:
        if mask.numel() == 0 or mask.numel() % max(rows, 1):
            if rows or mask.numel():
                raise ValueError(f"mask has shape {tuple(mask.shape)}, but there are {rows} values")
            return torch.zeros(0, dtype=torch.bool, device=self.mean.device)
        return mask.to(self.mean.device).bool().reshape(rows, -1).any(1)

    def _check_finite(self, moments: Moments) -> None:
        finite = torch.isfinite(moments.mean) & torch.isfinite(moments.m2)
        if not finite.all():
            bad = (~finite).reshape(-1).nonzero().flatten().tolist()
            raise ValueError(f"NaN or infinity in dimension(s) {bad} of the values")
