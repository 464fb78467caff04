"""Optimiser steps that nobody waits for, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rlinf.workers.actor.learner import Learner
from rlinf.workers.actor.tally import Tally

Piece = TypeVar("Piece")
Loss = tuple[Tensor, dict[str, Tensor]]
"""A loss, and numbers to show; all of them shares of the global batch that add up."""


class Descent:
    """Makes steps of the optimisers of a learner's policy.

    Args:
        learner: whose.
        names: of the optimisers.

    Attributes:
        tally: numbers to show of the steps so far.
    """

    def __init__(self, learner: Learner, names: Sequence[str]) -> None:
        self._learner = learner
        self._norms: dict[str, list[Tensor]] = {name: [] for name in names}
        self.tally = Tally()

    def step(
        self,
        name: str,
        pieces: Sequence[Piece],
        loss_of: Callable[[Piece], Loss],
        rows: Tensor,
    ) -> None:
        """Make one step.

        Args:
            name: of the optimiser.
            pieces: micro-batches.
            loss_of: the share of a micro-batch in the loss, and metrics.
            rows: samples of this rank, for those who watch.
        """
        engine, last = self._learner.engine, len(pieces) - 1
        seen = []
        for index, piece in enumerate(pieces):
            loss, numbers = loss_of(piece)
            engine.backward(loss, last=index == last)
            seen.append(numbers)
        self.tally.add(*seen)
        watches = self._learner.updates.watches
        for watch in watches:
            watch.before_step(rows)
        self._norms[name].append(engine.step_unread(name))
        for watch in watches:
            watch.after_step()

    def means(self) -> dict[str, float]:
        """Wait for all steps; return the means of their numbers over them and over all ranks."""
        engine = self._learner.engine
        return self.tally.means(engine.all_reduce if engine.world_size > 1 else None)

    def outcomes(self) -> dict[str, float]:
        """Wait for all steps; return what came of them, by optimiser."""
        engine, metrics = self._learner.engine, {}
        for name, norms in self._norms.items():
            if not norms:
                continue
            read = torch.stack(norms).cpu()
            made = engine.read_steps(name, read)
            left_out = len(norms) - made
            metrics[f"{name}/updates"] = float(made)
            metrics[f"{name}/updates_not_finite"] = float(left_out)
            metrics[f"{name}/lr"] = engine.optimizers[name].optimizer.param_groups[0]["lr"]
            if made:
                metrics[f"{name}/grad_norm"] = float(read[torch.isfinite(read)].mean())
            if left_out:
                self._learner.tell(
                    f"updates of the {name} left out, since a gradient was not finite: {left_out}"
                )
        return metrics
