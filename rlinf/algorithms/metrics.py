"""Metrics that merge exactly over micro-batches and ranks: sums and counts, not means of means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Metric:
    """What has been seen so far of one metric.

    Attributes:
        state: Float64 `[k]`, without gradient; states merge elementwise by `op`.
    """

    state: Tensor
    op: ClassVar[str] = "sum"

    def merge(self, other: Metric) -> Metric:
        """Return the metric of both parts together."""
        join = torch.add if self.op == "sum" else torch.maximum
        return type(self)(join(self.state, other.state))

    def value(self) -> float | None:
        """Return the number to show, or None when nothing was seen."""
        raise NotImplementedError


class MetricSum(Metric):
    """A weighted mean, kept as (total, weight)."""

    @classmethod
    def of(cls, total: Tensor, weight: Tensor | float) -> MetricSum:
        """Make the metric of a sum and of what it is to be divided by."""
        total = total.detach().double()
        weight = weight if isinstance(weight, Tensor) else torch.full_like(total, weight)
        return cls(torch.stack([total, weight.to(total)]))

    def value(self) -> float | None:
        """Return the mean."""
        total, weight = self.state.tolist()
        return total / weight if weight else None


class MetricMax(Metric):
    """The greatest value."""

    op = "max"

    @classmethod
    def of(cls, values: Tensor, mask: Tensor | None = None) -> MetricMax:
        """Make the metric of the valid ones of some values."""
        values = values.detach().double()
        if mask is not None:
            values = torch.where(mask, values, -torch.inf)
        if not values.numel():
            return cls(values.new_full((1,), -torch.inf))
        return cls(values.amax().reshape(1))

    def value(self) -> float | None:
        """Return the greatest value."""
        greatest = self.state.item()
        return None if greatest == float("-inf") else greatest


class ExplainedVariance(Metric):
    """1 − Var(R − V) / Var(R), kept as (n, ΣR, ΣR², Σe, Σe²) with e = R − V."""

    @classmethod
    def of(cls, returns: Tensor, values: Tensor, mask: Tensor | None = None) -> ExplainedVariance:
        """Make the metric of returns and predicted values of the same shape."""
        returns = returns.detach().double()
        error = returns - values.detach().double()
        if mask is None:
            count = returns.new_tensor(float(returns.numel()))
        else:
            mask = mask.expand_as(returns)
            returns, error = torch.where(mask, returns, 0.0), torch.where(mask, error, 0.0)
            count = mask.sum().to(returns)
        sums = [returns.sum(), returns.square().sum(), error.sum(), error.square().sum()]
        return cls(torch.stack([count, *sums]))

    def value(self) -> float | None:
        """Return the explained share, or None when the returns do not vary."""
        count, returns, returns_squared, error, error_squared = self.state.tolist()
        if count < 2:
            return None
        variance = returns_squared - returns * returns / count
        if variance <= 1e-12 * returns_squared:
            return None
        return 1.0 - (error_squared - error * error / count) / variance


def merge_metrics(parts: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Merge the metrics of several micro-batches, name by name."""
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def reduce_metrics(
    metrics: Mapping[str, Metric],
    all_reduce: Callable[[Tensor], Tensor | None] | None = None,
    all_reduce_max: Callable[[Tensor], Tensor | None] | None = None,
) -> dict[str, float]:
    """Return the numbers to show, over all ranks, with at most two small messages.

    Args:
        metrics: Those of this rank; every rank has the same names.
        all_reduce: Sums a float64 tensor over ranks; returns the sum, or None when in place.
        all_reduce_max: The same for the maximum.

    Returns:
        A number per metric; a metric that saw nothing is left out.
    """
    names = sorted(metrics)
    reduced: dict[str, Metric] = {}
    for op, reduce in (("sum", all_reduce), ("max", all_reduce_max)):
        chosen = [name for name in names if metrics[name].op == op]
        if not chosen:
            continue
        states = [metrics[name].state for name in chosen]
        joined = torch.cat(states)
        if reduce is not None:
            result = reduce(joined)
            joined = joined if result is None else result
        joined = joined.cpu()
        for name, state in zip(chosen, joined.split([len(s) for s in states]), strict=True):
            reduced[name] = type(metrics[name])(state)
    values = {name: reduced[name].value() for name in names}
    return {name: value for name, value in values.items() if value is not None}
