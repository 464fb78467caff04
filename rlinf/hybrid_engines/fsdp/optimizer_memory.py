"""Moves what an optimiser remembers between device and host."""

from __future__ import annotations

import torch
from torch import Tensor


class OptimizerMemory:
    """Puts the state of an optimiser away and brings it back.

    What was on the host all along, such as step counters of some optimisers, stays there.

    Args:
        optimizer: whose state it is.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._away: list[tuple[dict, str, torch.device]] = []

    def offload(self) -> None:
        """Moves all state to the host."""
        for state in self._optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.device.type != "cpu":
                    self._away.append((state, key, value.device))
                    state[key] = value.to("cpu")

    def onload(self) -> None:
        """Moves back what `offload` took away."""
        for state, key, device in self._away:
            state[key] = state[key].to(device)
        self._away.clear()
