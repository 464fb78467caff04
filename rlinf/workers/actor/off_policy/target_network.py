"""The slow copy of the critics that targets are computed with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlinf.algorithms.off_policy.averaging import polyak_update
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.utils.shards import own_part


class TargetNetwork:
    """Lets the frozen copy of an engine's model follow the model.

    Args:
        engine: it keeps a reference.
        follows: whether the copy needs the parameter of this name.
        averages: whether that parameter follows slowly; else it is copied.
        tau: share of the way.
    """

    def __init__(
        self,
        engine: TrainEngine,
        follows: Callable[[str], bool],
        averages: Callable[[str], bool],
        tau: float,
    ) -> None:
        self._engine, self._tau = engine, tau
        names = [name for name, _ in engine.model.named_parameters() if follows(name)]
        self._averaged = [name for name in names if averages(name)]
        self._copied = [name for name in names if not averages(name)]
        self._pairs: list[tuple[list[Tensor], list[Tensor], float]] = []

    def begin(self) -> None:
        """Look up the tensors, which may have moved, and copy the statistics of observations."""
        fast, slow = self._engine.model, self._engine.reference
        of_slow, of_fast = dict(slow.named_parameters()), dict(fast.named_parameters())
        self._pairs = [
            (
                [own_part(of_slow[name]).detach() for name in names],
                [own_part(of_fast[name]).detach() for name in names],
                tau,
            )
            for names, tau in ((self._averaged, self._tau), (self._copied, 1.0))
            if names
        ]
        with torch.no_grad():
            for own, other in zip(slow.buffers(), fast.buffers(), strict=True):
                own.copy_(other)

    def follow(self) -> None:
        """Make one move towards the model."""
        for slow, fast, tau in self._pairs:
            polyak_update(slow, fast, tau)
        self._engine.weights_changed(reference=True)
