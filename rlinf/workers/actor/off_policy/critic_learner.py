"""Critics that learn from targets; what an actor learns from them is up to subclasses."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.off_policy.heads import aggregate, draw_heads
from rlinf.algorithms.off_policy.losses import critic_loss
from rlinf.data.replay import ReplayBatch
from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.workers.actor.descent import Loss
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.off_policy.learner import OffPolicyLearner

_MOST_HEADS = 4
"""Q-functions whose values are also shown one by one."""


class CriticLearner(OffPolicyLearner):
    """Lets all Q-functions learn the same target, made of some of them."""

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, model, place)
        self._num_heads = model.num_q_heads
        self._subset: Tensor | None = None

    def _gradient_step(self, batch: ReplayBatch, *args: Any) -> None:
        size = self.settings.critic_subsample_size
        self._subset = draw_heads(self._num_heads, size, self._heads)
        super()._gradient_step(batch, *args)

    def _critic_loss(self, batch: ReplayBatch) -> Loss:
        values, target = self._values_and_targets(batch)
        weights = batch.weights if self.replay.prioritized else None
        loss = critic_loss(values, target, self.settings.total, weights)
        self._note_errors(values, target)
        scale = 1.0 / self.settings.total
        return loss, {
            "critic_loss": loss,
            "q_targets": target.sum() * scale,
            **_value_metrics(values.detach(), target, scale),
        }

    def _values_and_targets(self, batch: ReplayBatch) -> tuple[Tensor, Tensor]:
        """Return Q-values of what was done, `[Q, n]`, and what they are to be, `[n]`."""
        with torch.no_grad():
            target = self._targets(batch)
        return self._values(batch), target

    def _values(self, batch: ReplayBatch) -> Tensor:
        """Return Q-values of what was done, `[Q, n]`."""
        return self.engine.forward(
            forward_type=ForwardType.SAC_Q, forward_inputs=batch.obs, actions=batch.actions
        )

    @abstractmethod
    def _targets(self, batch: ReplayBatch) -> Tensor:
        """Return what Q-values are to be, `[n]`; called without gradients."""

    def _aggregate(self, values: Tensor) -> Tensor:
        """Make one Q-value of those that a target is made of."""
        if self._subset is not None:
            values = values[self._subset]
        return aggregate(values, self.settings.agg_q)


def _value_metrics(values: Tensor, target: Tensor, scale: float) -> dict[str, Tensor]:
    """Return Q-values, of all heads and of each if there are few, and how far they are off.

    Args:
        values: `[Q, n]`.
        target: `[n]`.
        scale: share of a sample in the mean over a batch.
    """
    metrics = {
        "q_values": values.mean(0).sum() * scale,
        "td_error": (values - target).abs().mean(0).sum() * scale,
    }
    if len(values) <= _MOST_HEADS:
        metrics |= {f"q_values_{i}": value.sum() * scale for i, value in enumerate(values, 1)}
    return metrics
