"""The loss of a value function."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.algorithms.aggregation import Aggregator
from rlinf.algorithms.metrics import ExplainedVariance, Metric


def compute_critic_loss(
    *,
    aggregator: Aggregator,
    values: Tensor,
    returns: Tensor,
    old_values: Tensor | None = None,
    value_clip: float | None = None,
    huber_delta: float = 10.0,
) -> tuple[Tensor, dict[str, Metric]]:
    """Huber loss of the values, with the change of a value clipped.

    V_clip = V_old + clamp(V − V_old, ±ε),  L = max(h(R − V), h(R − V_clip)), where
    h(e) = ½ e² for |e| ≤ δ and δ (|e| − ½ δ) beyond.

    Args:
        aggregator: How entries become one number.
        values: V, `[n, ...]`.
        returns: R, same shape.
        old_values: V_old of the rollout, same shape; for ε.
        value_clip: ε; None does not clip.
        huber_delta: δ.

    Returns:
        The share of the loss, and metrics.

    Raises:
        ValueError: ε is given and V_old is not.
    """
    values = aggregator.clean(_single(values), "values")
    returns = aggregator.clean(_single(returns), "returns")
    error = functional.huber_loss(values, returns, reduction="none", delta=huber_delta)
    metrics: dict[str, Metric] = {}
    if value_clip is not None:
        if old_values is None:
            raise ValueError("value_clip needs old_values, those of the rollout; or set it to null")
        old_values = aggregator.clean(_single(old_values), "old_values")
        change = values - old_values
        clipped = old_values + change.clamp(-value_clip, value_clip)
        clipped_error = functional.huber_loss(clipped, returns, reduction="none", delta=huber_delta)
        error = torch.maximum(error, clipped_error)
        metrics["critic/value_clip_fraction"] = aggregator.mean_metric(
            (change.abs() > value_clip).to(error.dtype)
        )
    metrics["critic/value_loss"] = aggregator.loss_metric(error)
    metrics["critic/value_mean"] = aggregator.mean_metric(values)
    metrics["critic/return_mean"] = aggregator.mean_metric(returns)
    metrics["critic/explained_variance"] = ExplainedVariance.of(
        returns, values, aggregator.mask_of(values)
    )
    return aggregator.loss(error), metrics


def _single(tensor: Tensor) -> Tensor:
    """Return the tensor in single precision at least."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor
