"""The update loop: epochs of minibatches of micro-batches, over whatever samples there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import Metric, merge_metrics, reduce_metrics
from rlinf.hybrid_engines.fsdp.engine import TrainEngine


class TrainingTask(Protocol):
    """Samples of this rank, and the loss on some of them."""

    num_samples: int

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """Counts what the loss of a minibatch is divided by, over all ranks."""
        ...

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """A micro-batch's share of the loss of its minibatch, and metrics."""
        ...


class UpdateWatch(Protocol):
    """Looks at every optimiser step."""

    def before_step(self, rows: Tensor) -> None:
        """The gradient on some samples is complete and not used yet."""
        ...

    def after_step(self) -> None:
        """The weights have changed."""
        ...


class UpdateLoop:
    """Makes the optimiser steps of one rollout.

    Each epoch goes through all samples, in an order of its own, in minibatches of
    `actor.global_batch_size` samples over all ranks.

    Args:
        cfg: the configuration.
        engine: what is trained.
        seed: of the shuffle, differing between ranks.

    Attributes:
        shuffle: where the order of samples comes from.
        watch: looks at every optimiser step; None is nobody.
    """

    def __init__(self, cfg: Any, engine: TrainEngine, seed: int) -> None:
        # Read once: the loop comes by very often.
        actor, algorithm = cfg.actor, cfg.algorithm
        self._global_batch: int | None = actor.global_batch_size
        self._micro_batch: int | None = actor.micro_batch_size
        self._epochs: int = algorithm.update_epoch
        self._shuffles: bool = algorithm.shuffle_rollout
        self._target_kl: float | None = algorithm.target_kl
        self._engine = engine
        self.shuffle = torch.Generator().manual_seed(seed)
        self.watch: UpdateWatch | None = None

    def share(self, samples: int) -> int:
        """Samples of a minibatch that a rank has."""
        batch = self._global_batch
        return samples if batch is None else batch // self._engine.world_size

    def run(self, task: TrainingTask) -> dict[str, float]:
        """Updates the model and returns metrics over all ranks.

        Among these, `actor/updates` counts optimiser steps, `actor/updates_empty` minibatches
        without a sample that counts, and `actor/updates_not_finite` those whose gradient was not
        finite; neither of the latter changes the model.
        """
        parts: list[dict[str, Metric]] = []
        steps: list[dict[str, float]] = []
        empty = not_finite = 0
        stopped = False
        for rows in self._minibatches(task.num_samples):
            norm = task.norm(rows, self._engine.all_reduce if self._engine.world_size > 1 else None)
            if norm.entries == 0:
                empty += 1
                continue
            metrics, step = self._update(task, rows, norm)
            if step is None:
                not_finite += 1
                continue
            parts += metrics
            steps.append(step)
            if self._too_far(metrics):
                stopped = True
                break
        reduced = self._reduce(parts)
        for key in steps[0] if steps else ():
            reduced[f"actor/{key}"] = sum(step[key] for step in steps) / len(steps)
        reduced["actor/updates"] = float(len(steps))
        reduced["actor/updates_empty"] = float(empty)
        reduced["actor/updates_not_finite"] = float(not_finite)
        reduced["actor/stopped_by_kl"] = float(stopped)
        return reduced

    def _minibatches(self, samples: int) -> Any:
        share = self.share(samples)
        for _ in range(self._epochs):
            order = (
                torch.randperm(samples, generator=self.shuffle)
                if self._shuffles
                else torch.arange(samples)
            )
            for start in range(0, samples - share + 1, share):
                yield order[start : start + share]

    def _update(
        self, task: TrainingTask, rows: Tensor, norm: LossNorm
    ) -> tuple[list[dict[str, Metric]], dict[str, float] | None]:
        """One optimiser step on some samples, in micro-batches."""
        metrics = []
        pieces = rows.split(self._micro_batch or len(rows))
        for index, piece in enumerate(pieces):
            loss, of_piece = task.loss(piece, norm)
            self._engine.backward(loss, last=index == len(pieces) - 1)
            metrics.append(of_piece)
        if self.watch is None:
            return metrics, self._engine.step()
        self.watch.before_step(rows)
        step = self._engine.step()
        self.watch.after_step()
        return metrics, step

    def _too_far(self, metrics: list[dict[str, Metric]]) -> bool:
        """Whether the policy has left the old one by more than `algorithm.target_kl`."""
        limit = self._target_kl
        return limit is not None and self._reduce(metrics).get("actor/approx_kl", 0.0) > limit

    def _reduce(self, parts: list[dict[str, Metric]]) -> dict[str, float]:
        engine = self._engine
        return reduce_metrics(merge_metrics(parts), engine.all_reduce, engine.all_reduce_max)
