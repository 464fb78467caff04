"""The loss of behaviour cloning on samples of demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.imitation import cloning_loss
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
        loss: `mse` or `nll`.
        micro_batch: Samples of a micro-batch; None is all.
    """

    def __init__(
        self,
        engine: TrainEngine,
        samples: ChunkSamples,
        rows: Tensor,
        loss: str,
        micro_batch: int | None,
    ) -> None:
        self._engine, self._samples, self._rows = engine, samples, rows
        self._loss, self._micro_batch = loss, micro_batch
        self.num_samples = len(rows)

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return LossNorm.count(self._samples.valid(self._rows[rows]), all_reduce=all_reduce)

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return rows.split(self._micro_batch or len(rows))

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        frames, device = self._rows[rows], self._engine.device
        obs, actions = self._samples.take(frames)
        out = self._engine.forward(
            forward_type="sft",
            observations=obs | {name: x.to(device) for name, x in tensors_of(obs).items()},
            actions=actions.to(device),
        )
        return cloning_loss(
            errors=out["errors"],
            logprobs=out["logprobs"],
            loss_mask=self._samples.valid(frames).to(device),
            norm=norm,
            use_logprobs=self._loss == "nll" or not out["errors"].requires_grad,
        )
