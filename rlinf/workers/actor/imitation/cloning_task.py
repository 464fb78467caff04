"""The loss of behaviour cloning on samples of demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.imitation import cloning_loss, given_loss
from rlinf.algorithms.metrics import Metric
from rlinf.data.demonstrations.sampling import ChunkSamples
from rlinf.data.embodied_messages import tensors_of
from rlinf.hybrid_engines.fsdp.engine import TrainEngine


class CloningTask:
    """Samples of this rank for one update, and the loss on some of them.

    Args:
        engine: The policy.
        samples: All demonstrations.
        rows: Frames to learn from, in order, int64 `[num_samples]`.
        loss: `mse` or `nll`; policies that return losses of their own are trained by those.
        micro_batch: Samples of a micro-batch; None is all.
        noise: What the losses of a policy are drawn with, `[num_samples, sft_noise_width]`; None
            if it needs none.
    """

    def __init__(
        self,
        engine: TrainEngine,
        samples: ChunkSamples,
        rows: Tensor,
        loss: str,
        micro_batch: int | None,
        noise: Tensor | None = None,
    ) -> None:
        self._engine, self._samples, self._rows = engine, samples, rows
        self._loss, self._micro_batch, self._noise = loss, micro_batch, noise
        self.num_samples = len(rows)

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return LossNorm.count(self._samples.valid(self._rows[rows]), all_reduce=all_reduce)

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return rows.split(self._micro_batch or len(rows))

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return self._loss_of(self._engine.forward(**self._arguments(rows)), rows, norm)

    @torch.no_grad()
    def mean_loss(self) -> float:
        """Return the loss on all samples, without gradients and augmentations."""
        rows = torch.arange(self.num_samples)
        norm, total = self.norm(rows, None), 0.0
        for piece in self.split(rows):
            out = self._engine.infer(**self._arguments(piece), augment=False)
            total += float(self._loss_of(out, piece, norm)[0])
        return total

    def _arguments(self, rows: Tensor) -> dict[str, Any]:
        obs, actions = self._samples.take(self._rows[rows])
        device = self._engine.device
        drawn = {} if self._noise is None else {"noise": self._noise[rows].to(device)}
        return {
            "forward_type": "sft",
            "observations": obs | {name: x.to(device) for name, x in tensors_of(obs).items()},
            "actions": actions.to(device),
            **drawn,
        }

    def _loss_of(
        self, out: dict[str, Tensor], rows: Tensor, norm: LossNorm
    ) -> tuple[Tensor, dict[str, Metric]]:
        valid = self._samples.valid(self._rows[rows]).to(self._engine.device)
        if "losses" in out:
            return given_loss(out["losses"], valid, norm)
        return cloning_loss(
            errors=out["errors"],
            logprobs=out["logprobs"],
            loss_mask=valid,
            norm=norm,
            use_logprobs=self._loss == "nll" or self._engine.model.cloned_by_likelihood,
        )
