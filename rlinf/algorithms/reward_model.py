"""Reward models: how a classifier of success is trained and judged, and what it rewards."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import Metric, MetricSum


def class_weights(labels: Tensor) -> tuple[float, float]:
    """Return the weights of unsolved and solved samples that let both classes count the same.

    With N samples, of which N_c are of class c, `w_c = N / (2 N_c)`; the mean weight is 1.

    Args:
        labels: Whether each sample is solved, bool `[N]`; there are both.
    """
    count, solved = len(labels), int(labels.sum())
    return count / (2 * (count - solved)), count / (2 * solved)


def classification_loss(
    *, logits: Tensor, labels: Tensor, weights: tuple[float, float], norm: LossNorm
) -> tuple[Tensor, dict[str, Metric]]:
    """Return this micro-batch's share of the weighted cross-entropy.

    With log-odds z, label y and class weight w_y, the loss is the mean over the global batch of
    `-w_y (y log sigmoid(z) + (1 - y) log(1 - sigmoid(z)))`.

    Args:
        logits: Log-odds, `[n]`.
        labels: Whether the task is solved, bool `[n]`.
        weights: Of unsolved and of solved samples.
        norm: Counts of the global batch.
    """
    weight = torch.where(labels, weights[1], weights[0])
    terms = weight * functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits.dtype), reduction="none"
    )
    right = (logits >= 0) == labels
    return terms.sum() / norm.entries, {
        "actor/loss": MetricSum.of(terms.sum(), len(labels)),
        "actor/accuracy": MetricSum.of(right.sum(), len(labels)),
    }


def classification_scores(logits: Tensor, labels: Tensor, threshold: float) -> dict[str, float]:
    """Return how well log-odds tell solved from unsolved observations.

    `auc` is the area under the ROC curve: how likely a solved observation has greater log-odds
    than an unsolved one, ties counting one half.

    Args:
        logits: Log-odds, `[n]`.
        labels: Whether the task is solved, bool `[n]`; there are both.
        threshold: Probability from which an observation counts as solved.
    """
    logits, labels = logits.double().cpu(), labels.cpu()
    found = logits.sigmoid() >= threshold
    hits = int((found & labels).sum())
    solved = int(labels.sum())
    # Mann-Whitney: ranks of equal values are their mean.
    _, place, sizes = logits.unique(return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum(0) - (sizes - 1) / 2)[place]
    pairs = solved * (len(labels) - solved)
    return {
        "accuracy": float((found == labels).double().mean()),
        "auc": float((ranks[labels].sum() - solved * (solved + 1) / 2) / pairs),
        "precision": hits / max(1, int(found.sum())),
        "recall": hits / solved,
        "loss": float(functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))),
    }


def model_rewards(
    probabilities: Tensor,
    valid: Tensor,
    ended: Tensor,
    *,
    reward_mode: str,
    reward_threshold: float,
    use_reward_prob: bool,
) -> Tensor:
    """Return what a reward model gives for a rollout, float32 `[T, B, C]`.

    A chunk has one reward, of the observation that it led to. It is that of the last action that
    was carried out; a chunk without any has none.

    Args:
        probabilities: Of success in what each chunk led to, `[T, B]`.
        valid: Which actions were carried out, bool `[T, B, C]`.
        ended: Which chunks ended an episode, bool `[T, B]`.
        reward_mode: `per_step` rewards each chunk, `terminal` only those that ended an episode.
        reward_threshold: Probability from which the reward is 1, and below which it is 0.
        use_reward_prob: The reward is the probability itself.
    """
    rewards = probabilities.float()
    if not use_reward_prob:
        rewards = (probabilities >= reward_threshold).float()
    if reward_mode == "terminal":
        rewards = torch.where(ended, rewards, 0.0)
    later = valid.flip(-1).cumsum(-1).flip(-1) - valid.long()
    return torch.where(valid & (later == 0), rewards.unsqueeze(-1), 0.0)
