"""The loss of a reward model on labelled observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import Metric
from rlinf.algorithms.reward_model import classification_loss
from rlinf.data.demonstrations.success_frames import SuccessFrames
from rlinf.hybrid_engines.fsdp.engine import TrainEngine


class ClassificationTask:
    """Samples of this rank for one update, and the loss on some of them.

    Args:
        engine: The reward model.
        frames: All labelled observations.
        rows: Those to learn from, in order, int64 `[num_samples]`.
        weights: Of unsolved and of solved samples.
        micro_batch: Samples of a micro-batch; None is all.
    """

    def __init__(
        self,
        engine: TrainEngine,
        frames: SuccessFrames,
        rows: Tensor,
        weights: tuple[float, float],
        micro_batch: int | None,
    ) -> None:
        self._engine, self._frames, self._rows = engine, frames, rows
        self._weights, self._micro_batch = weights, micro_batch
        self.num_samples = len(rows)

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return LossNorm.count(torch.ones(len(rows), 1), all_reduce=all_reduce)

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return rows.split(self._micro_batch or len(rows))

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        obs, labels = self._frames.take(self._rows[rows])
        logits = self._engine.forward(observations=obs)
        return classification_loss(logits=logits, labels=labels, weights=self._weights, norm=norm)
