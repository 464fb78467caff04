"""Losses that make a policy do what others did."""

from __future__ import annotations

from torch import Tensor

from rlinf.algorithms.aggregation import Aggregator, LossNorm
from rlinf.algorithms.metrics import Metric


def cloning_loss(
    *,
    errors: Tensor,
    logprobs: Tensor,
    loss_mask: Tensor,
    norm: LossNorm | None = None,
    use_logprobs: bool = False,
) -> tuple[Tensor, dict[str, Metric]]:
    """Return this micro-batch's share of the loss of behaviour cloning.

    With error e and log-probability of each of the numbers of an action, the loss is the mean over
    valid actions and their numbers of `e^2`, or of `-log pi(a | s)`.

    Args:
        errors: How far the policy's actions are from those of the data, `[n, C*A]`.
        logprobs: Log-probability of the actions of the data, `[n, C*A]`.
        loss_mask: Which actions are valid, bool `[n, C]`.
        norm: Counts of the global batch; None when this micro-batch is all of it.
        use_logprobs: Use log-probabilities; else errors.
    """
    chunks, parts = loss_mask.shape[1], _over_actions(loss_mask, errors, norm)
    shaped = {
        "errors": parts.clean(errors.unflatten(1, (chunks, -1)), "errors"),
        "logprobs": parts.clean(logprobs.unflatten(1, (chunks, -1)), "logprobs"),
    }
    term = -shaped["logprobs"] if use_logprobs else shaped["errors"].square()
    metrics = {
        "actor/loss": parts.loss_metric(term),
        "actor/action_error": parts.mean_metric(shaped["errors"].abs()),
        "actor/logprob": parts.mean_metric(shaped["logprobs"]),
    }
    return parts.loss(term), metrics


def given_loss(
    losses: Tensor, loss_mask: Tensor, norm: LossNorm | None = None
) -> tuple[Tensor, dict[str, Metric]]:
    """Return this micro-batch's share of the mean, over valid actions, of a policy's own losses.

    Args:
        losses: What the policy makes of each number of the actions of the data, `[n, C*A]`.
        loss_mask: Which actions are valid, bool `[n, C]`.
        norm: Counts of the global batch; None when this micro-batch is all of it.
    """
    parts = _over_actions(loss_mask, losses, norm)
    term = parts.clean(losses.unflatten(1, (loss_mask.shape[1], -1)), "losses")
    return parts.loss(term), {"actor/loss": parts.loss_metric(term)}


def _over_actions(loss_mask: Tensor, like: Tensor, norm: LossNorm | None) -> Aggregator:
    """Return what takes means over the valid actions `[n, C]` of terms `[n, C, A]`."""
    return Aggregator(
        loss_mask.to(like.dtype),
        ndim=3,
        loss_mask=loss_mask,
        loss_agg_func="token-mean",
        norm=norm,
    )
