"""Moves what an optimiser remembers between device and host."""

from __future__ import annotations

import torch
from torch import Tensor

_COUNTER = "step"


class OptimizerMemory:
    """Puts the state of an optimiser away and brings it back.

    Args:
        optimizer: whose state it is.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        settings = optimizer.defaults
        # Other optimisers count their steps on the host.
        self._counts_on_device = bool(settings.get("fused") or settings.get("capturable"))

    def offload(self) -> None:
        """Move all state to the host."""
        self._move(torch.device("cpu"))

    def onload(self, device: torch.device) -> None:
        """Move the state to the device of the weights, wherever it came from."""
        self._move(device)

    def _move(self, device: torch.device) -> None:
        for state in self._optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor) and (key != _COUNTER or self._counts_on_device):
                    state[key] = value.to(device)
