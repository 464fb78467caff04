"""Turns losses per entry into a share of one number for the global batch.

A loss is a mean over the global batch: all micro-batches of all ranks of one optimiser step. Each
micro-batch returns the sum over its own entries divided by the global count, a `LossNorm`; these
shares add up to the mean, whatever the split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.algorithms.metrics import MetricSum
from rlinf.config.suggest import listed

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@dataclass(frozen=True)
class LossNorm:
    """What the losses of a global batch are divided by.

    Attributes:
        entries: Valid entries of the loss masks of the global batch.
        sequences: Sequences with a valid entry; with `loss_mask_sum`, the sum of 1 / length over
            valid entries, which is the same when sequences are whole.
        rows: Rows with a valid entry; None where no term has just one entry per row.
    """

    entries: float
    sequences: float
    rows: float | None = None

    @classmethod
    def count(
        cls,
        loss_mask: Tensor,
        *,
        loss_mask_sum: Tensor | None = None,
        all_reduce: Callable[[Tensor], Tensor | None] | None = None,
    ) -> LossNorm:
        """Count the global batch.

        Args:
            loss_mask: Mask of this rank's whole share of the batch, `[n, ...]`, with the
                trailing dimensions of the masks that the loss will get (or, for a loss without
                masks, ones in the shape of the advantages).
            loss_mask_sum: Valid entries of the sequence that each entry belongs to, of the same
                shape; None when each row is a sequence.
            all_reduce: Sums a float64 tensor over ranks; returns the sum, or None when in place.
        """
        counts = torch.stack(_counts(loss_mask.bool(), loss_mask_sum))
        if all_reduce is not None:
            reduced = all_reduce(counts)
            counts = counts if reduced is None else reduced
        return cls(*counts.tolist())

    def factor_to(self, other: LossNorm, loss_agg_func: str) -> float:
        """Return what turns a loss over these counts into the loss over other ones."""
        if loss_agg_func == "token-mean":
            return self.entries / other.entries
        return self.sequences / other.sequences


class Aggregator:
    """Sums over the valid entries of one micro-batch.

    All tensors of a loss have the batch first; missing trailing dimensions are ones, `[n]` is
    `[n, 1, 1]` beside `[n, C, A]`. A term finer than the mask counts each of its entries. One that
    has a single entry per row counts a row once, if anything in it is valid; only in
    `seq-mean-token-mean`, whose lengths are in entries of the mask, it counts as often as these.

    Args:
        like: A tensor in the layout of the mask, which stands for it when there is none.
        ndim: Dimensions of the finest tensor of the loss.
        loss_mask: `[n, ...]`; None is all.
        loss_mask_sum: See `LossNorm.count`.
        loss_agg_func: `token-mean`: Σ l / entries. `seq-mean-token-sum`: Σ l / sequences.
            `seq-mean-token-mean`: Σ_b (Σ_t l / length_b) / sequences. `seq-mean-token-sum-norm`:
            Σ l / (sequences · loss_length). Empty sequences count 0.
        norm: Counts of the global batch; None when this micro-batch is all of it.
        loss_length: The constant of `seq-mean-token-sum-norm`.
    """

    def __init__(
        self,
        like: Tensor,
        *,
        ndim: int,
        loss_mask: Tensor | None = None,
        loss_mask_sum: Tensor | None = None,
        loss_agg_func: str = "token-mean",
        norm: LossNorm | None = None,
        loss_length: float | None = None,
    ) -> None:
        if loss_agg_func not in MODES:
            raise ValueError(f"loss_agg_func is '{loss_agg_func}'; allowed: {listed(MODES)}")
        if loss_agg_func == "seq-mean-token-sum-norm" and not loss_length:
            raise ValueError(
                "loss_agg_func seq-mean-token-sum-norm divides by a constant length, but "
                f"loss_length is {loss_length}; set it to the most tokens of a sequence"
            )
        self.mode = loss_agg_func
        self.loss_length = loss_length
        self.norm = norm
        self.ndim = ndim = ndim if loss_mask is None else max(ndim, loss_mask.ndim)
        if loss_mask is None and loss_agg_func != "token-mean":
            loss_mask = torch.ones_like(like, dtype=torch.bool)
        base = align(like if loss_mask is None else loss_mask, ndim)
        self.base_shape = base.shape
        self.mask = None if loss_mask is None else base.bool()
        self.weights: Tensor | None = None
        if self.mask is None:
            self.entries: Tensor | float = float(base.numel())
            self.sequences: Tensor | float = float(len(base))
            self.rows: Tensor | float = float(len(base))
            return
        self.entries, self.sequences, self.rows = _counts(
            self.mask, None if loss_mask_sum is None else align(loss_mask_sum, ndim)
        )
        self.weights = self.mask.to(like.dtype)
        if loss_agg_func == "seq-mean-token-mean":
            self.weights = self.weights / _lengths(
                self.mask, None if loss_mask_sum is None else align(loss_mask_sum, ndim)
            )

    def clean(self, tensor: Tensor, name: str) -> Tensor:
        """Align a tensor with the mask and set its masked entries, whatever they are, to zero.

        Raises:
            ValueError: The shape does not go with that of the mask.
        """
        tensor = align(tensor, self.ndim)
        fits = len(tensor) == self.base_shape[0] and all(
            one == other or 1 in (one, other)
            for one, other in zip(tensor.shape, self.base_shape, strict=True)
        )
        if not fits:
            what = "advantages" if self.mask is None else "loss_mask"
            raise ValueError(
                f"{name} has the shape {tuple(tensor.shape)}, which does not go with that of "
                f"{what}, {tuple(self.base_shape)}: the batch comes first and must be equal, "
                "other dimensions must be equal or 1"
            )
        mask = self.mask_of(tensor)
        return tensor if mask is None else torch.where(mask, tensor, 0.0)

    def mask_of(self, tensor: Tensor) -> Tensor | None:
        """Return the valid entries of an aligned tensor; None is all."""
        if self.mask is None or not self._per_row(tensor):
            return self.mask
        return align(_rows(self.mask).any(1), self.mask.ndim)

    def loss(self, term: Tensor) -> Tensor:
        """Return the share of the micro-batch in the aggregate of a cleaned term."""
        divisor = self._divisor(self if self.norm is None else self.norm, term)
        return self._sum(term, self.weights) / _nonzero(divisor)

    def loss_metric(self, term: Tensor) -> MetricSum:
        """Return the aggregate of a cleaned term, weighted as in the loss, as a metric."""
        with torch.no_grad():
            total = self._sum(term.detach(), self.weights)
            return MetricSum.of(total, self._divisor(self, term))

    def mean_metric(self, term: Tensor) -> MetricSum:
        """Return the plain mean of a term over valid entries, as a metric."""
        with torch.no_grad():
            total = self._sum(term.detach(), self.mask)
            return MetricSum.of(total, self._entries(self, term))

    def _divisor(self, counts: LossNorm | Aggregator, term: Tensor) -> Tensor | float:
        if self.mode == "seq-mean-token-sum":
            return counts.sequences
        if self.mode == "seq-mean-token-sum-norm":
            return counts.sequences * self.loss_length
        if self.mode == "seq-mean-token-mean":
            return counts.sequences * self._finer(term)
        return self._entries(counts, term)

    def _entries(self, counts: LossNorm | Aggregator, term: Tensor) -> Tensor | float:
        return counts.rows if self._per_row(term) else counts.entries * self._finer(term)

    def _sum(self, term: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            return term.sum()
        if self._per_row(term):
            in_lengths = weights is self.weights and self.mode == "seq-mean-token-mean"
            rows = _rows(weights)
            rows = rows.sum(1) if in_lengths else rows.any(1)
            return (term.reshape(len(term)) * rows).sum()
        return (term * weights).sum()

    def _per_row(self, term: Tensor) -> bool:
        """Return whether a term has one entry per row of a mask that has several."""
        return _size_of_row(term.shape) == 1 and _size_of_row(self.base_shape) > 1

    def _finer(self, term: Tensor) -> float:
        """Return how many entries of the term lie in one of the mask, at least 1."""
        # All trailing sizes are equal or 1, so the greater is the common one.
        common = math.prod(map(max, term.shape[1:], self.base_shape[1:]))
        return common / _size_of_row(self.base_shape)


def align(tensor: Tensor, ndim: int) -> Tensor:
    """Append dimensions of size one until there are `ndim`."""
    return tensor.reshape(*tensor.shape, *(1,) * (ndim - tensor.ndim))


def _counts(mask: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the valid entries, the sequences they make and the rows they are in, float64."""
    entries, rows = mask.sum().double(), _rows(mask).any(1).sum().double()
    if lengths is None:
        return entries, rows, rows
    return entries, (mask / lengths.double().clamp(min=1)).sum(), rows


def _lengths(mask: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        lengths = align(_rows(mask).sum(1), mask.ndim)
    return lengths.clamp(min=1)


def _rows(mask: Tensor) -> Tensor:
    return mask.flatten(1) if mask.ndim > 1 else mask.unsqueeze(1)


def _size_of_row(shape: torch.Size) -> int:
    return math.prod(shape[1:])


def _nonzero(divisor: Tensor | float) -> Tensor | float:
    # A batch without a valid entry has the sum 0, and the mean 0.
    if isinstance(divisor, Tensor):
        return divisor.clamp(min=1e-12)
    return max(divisor, 1e-12)
