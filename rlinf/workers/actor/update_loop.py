"""The update loop: epochs of minibatches of micro-batches, over whatever samples there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import Metric, merge_metrics, reduce_metrics
from rlinf.hybrid_engines.fsdp.engine import TrainEngine

_KL = "actor/approx_kl"


class TrainingTask(Protocol):
    """Samples of this rank, and the loss on some of them."""

    num_samples: int

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """Count what the loss of a minibatch is divided by, over all ranks."""
        ...

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """Return a micro-batch's share of the loss of its minibatch, and metrics."""
        ...

    def split(self, rows: Tensor) -> Iterable[Tensor]:
        """Return the micro-batches of a minibatch, as many on each rank."""
        ...


class StreamedTask(TrainingTask, Protocol):
    """Samples that come before the count of their minibatch is known."""

    def rescale(self, assumed: LossNorm, actual: LossNorm) -> float:
        """Return the factor that turns a loss over one count into that over another."""
        ...


@dataclass(frozen=True)
class UpdateShape:
    """How samples become optimiser steps.

    Attributes:
        global_batch: samples of a minibatch over all ranks; None is all of them.
        minibatches: instead of that, the number of minibatches of an epoch.
        epochs: passes over the samples.
        shuffles: whether each pass has an order of its own.
        target_kl: divergence from the old policy past which no further step is made; None is
            never.
    """

    global_batch: int | None = None
    minibatches: int | None = None
    epochs: int = 1
    shuffles: bool = True
    target_kl: float | None = None


class UpdateWatch(Protocol):
    """Looks at every optimiser step."""

    def before_step(self, rows: Tensor) -> None:
        """The gradient on some samples is complete; the step may still be left out."""
        ...

    def after_step(self) -> None:
        """The weights have changed, unless the step was left out."""
        ...


class UpdateLoop:
    """Makes the optimiser steps of one rollout.

    Each epoch goes through all samples, in an order of its own, in minibatches of
    `actor.global_batch_size` samples over all ranks.

    Args:
        cfg: the configuration.
        engine: what is trained.
        seed: of the shuffle, differing between ranks.
        shape: how samples become optimiser steps; None is what the configuration says.
        unit: samples of the configuration that one sample of a task stands for, as a sequence does.

    Attributes:
        shuffle: where the order of samples comes from.
        watches: look at every optimiser step; one that raises before a step keeps it from
            happening.
    """

    def __init__(
        self,
        cfg: Any,
        engine: TrainEngine,
        seed: int,
        shape: UpdateShape | None = None,
        unit: int = 1,
    ) -> None:
        # Read once: the loop comes by very often.
        if shape is None:
            algorithm, batch = cfg.algorithm, cfg.actor.global_batch_size
            shape = UpdateShape(
                global_batch=None if batch is None else batch // unit,
                epochs=algorithm.update_epoch,
                shuffles=algorithm.shuffle_rollout,
                target_kl=algorithm.target_kl,
            )
        self._shape = shape
        self._engine = engine
        self.shuffle = torch.Generator().manual_seed(seed)
        self.watches: list[UpdateWatch] = []

    def share(self, samples: int) -> int:
        """Return the samples of a minibatch that a rank has."""
        batch = self._shape.global_batch
        return samples if batch is None else batch // self._engine.world_size

    def run(self, task: TrainingTask) -> dict[str, float]:
        """Update the model and return metrics over all ranks.

        Among these, `actor/updates` counts optimiser steps, `actor/updates_empty` minibatches
        without a sample that counts, and `actor/updates_not_finite` those whose gradient was not
        finite; neither of the latter changes the model. `actor/stopped_by_kl` is 1 if a minibatch
        was further than `algorithm.target_kl` from the old policy: it and those after it have
        changed nothing. Schedules advance by all minibatches, whatever became of them.
        """
        engine, done = self._engine, _Done()
        end = engine.progress + self._planned(task.num_samples)
        stopped = False
        for rows in self._minibatches(task.num_samples):
            norm = task.norm(rows, engine.all_reduce if engine.world_size > 1 else None)
            if norm.entries == 0:
                done.empty += 1
            else:
                metrics = self._add_up(task, rows, norm, last=True)
                stopped = self._too_far(metrics)
                done.count(metrics, self._step(rows, refused=stopped), refused=stopped)
            if stopped:
                break
            engine.advance()
        engine.set_progress(end)
        reduced = self._summary(done)
        reduced["actor/stopped_by_kl"] = float(stopped)
        return reduced

    def skip(self, samples: int) -> None:
        """Let schedules go on as if there had been an update on a number of samples."""
        self._engine.advance(self._planned(samples))

    def stream(self, rounds: Iterable[tuple[StreamedTask, bool]]) -> dict[str, float]:
        """Update the model on samples as they come; return metrics over all ranks.

        Losses are linear in what they are divided by. So each round adds up its gradient over an
        assumed count, and when the minibatch is complete, it is scaled to the actual one.

        Args:
            rounds: samples of this rank, and whether they complete a minibatch; each rank has as
                many rounds, and they complete minibatches together.
        """
        engine = self._engine
        done = _Done()
        metrics: list[dict[str, Metric]] = []
        seen, assumed = LossNorm(0.0, 0.0), None
        for task, complete in rounds:
            rows = torch.arange(task.num_samples)
            count = task.norm(rows, engine.all_reduce if engine.world_size > 1 else None)
            # Any number would do; the first count is about right, and the same on all ranks.
            assumed = assumed or LossNorm(max(count.entries, 1.0), max(count.sequences, 1.0))
            seen = LossNorm(seen.entries + count.entries, seen.sequences + count.sequences)
            metrics += self._add_up(task, rows, assumed, last=complete)
            if not complete:
                continue
            if seen.entries == 0:
                done.empty += 1
                engine.drop_gradients()
            else:
                engine.scale_gradients(task.rescale(assumed, seen))
                done.count(metrics, self._step(rows))
            engine.advance()
            metrics, seen, assumed = [], LossNorm(0.0, 0.0), None
        return self._summary(done)

    def _summary(self, done: _Done) -> dict[str, float]:
        reduced = self._reduce(done.parts)
        for key in done.steps[0] if done.steps else ():
            reduced[f"actor/{key}"] = sum(step[key] for step in done.steps) / len(done.steps)
        reduced["actor/updates"] = float(len(done.steps))
        reduced["actor/updates_empty"] = float(done.empty)
        reduced["actor/updates_not_finite"] = float(done.not_finite)
        return reduced

    def _planned(self, samples: int) -> int:
        """Return the minibatches of all epochs."""
        per_epoch = self._shape.minibatches
        if per_epoch is None:
            per_epoch = samples // self.share(samples)
        return self._shape.epochs * per_epoch

    def _minibatches(self, samples: int) -> Any:
        share = self.share(samples)
        for _ in range(self._shape.epochs):
            order = (
                torch.randperm(samples, generator=self.shuffle)
                if self._shape.shuffles
                else torch.arange(samples)
            )
            if self._shape.minibatches is not None:
                yield from order.tensor_split(self._shape.minibatches)
                continue
            for start in range(0, samples - share + 1, share):
                yield order[start : start + share]

    def _step(self, rows: Tensor, *, refused: bool = False) -> dict[str, float] | None:
        """One optimiser step with the gradient of some samples, unless it is refused."""
        for watch in self.watches:
            watch.before_step(rows)
        if refused:
            self._engine.drop_gradients()
            step = None
        else:
            step = self._engine.step()
        for watch in self.watches:
            watch.after_step()
        return step

    def _add_up(
        self, task: TrainingTask, rows: Tensor, norm: LossNorm, *, last: bool
    ) -> list[dict[str, Metric]]:
        """Add the gradient of some samples, in micro-batches; return their metrics."""
        metrics = []
        pieces = list(task.split(rows))
        for index, piece in enumerate(pieces):
            loss, of_piece = task.loss(piece, norm)
            self._engine.backward(loss, last=last and index == len(pieces) - 1)
            metrics.append(of_piece)
        return metrics

    def _too_far(self, metrics: list[dict[str, Metric]]) -> bool:
        """Return whether the policy is further from the old one than `algorithm.target_kl`.

        All ranks decide alike, by the mean over the samples of all of them.
        """
        limit = self._shape.target_kl
        if limit is None:
            return False
        # A critic that is trained alone has none.
        known = [{_KL: part[_KL]} for part in metrics if _KL in part]
        return self._reduce(known).get(_KL, 0.0) > limit

    def _reduce(self, parts: list[dict[str, Metric]]) -> dict[str, float]:
        engine = self._engine
        return reduce_metrics(merge_metrics(parts), engine.all_reduce, engine.all_reduce_max)


class _Done:
    """What a number of minibatches came to."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Metric]] = []
        self.steps: list[dict[str, float]] = []
        self.empty = self.not_finite = 0

    def count(
        self,
        metrics: list[dict[str, Metric]],
        step: dict[str, float] | None,
        *,
        refused: bool = False,
    ) -> None:
        """Note a minibatch: metrics, unless they are not finite, and the step, if it was made."""
        if step is None and not refused:
            self.not_finite += 1
            return
        self.parts += metrics
        if step is not None:
            self.steps.append(step)
