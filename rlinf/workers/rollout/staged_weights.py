"""Weights that arrive while a policy acts."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Protocol

from torch import nn

from rlinf.hybrid_engines.weight_sync.packing import copy_all


class Receiver(Protocol):
    """Where weights come from; see `WeightReceiver`."""

    def receive(self, model: nn.Module) -> int:
        """Load the next version of the weights into a model and return its number."""


class StagedWeights:
    """A second copy of a policy's weights: one thread receives into it, another one acts.

    Args:
        policy: the one that acts, on its device.
    """

    def __init__(self, policy: nn.Module) -> None:
        self._staged = copy.deepcopy(policy)
        self._sources = list(self._staged.state_dict().values())
        self._targets = list(policy.state_dict().values())
        self._busy = threading.Lock()
        self._version: int | None = None

    def receive(self, receiver: Receiver) -> int:
        """Receive the next version, in a thread of its own; return its number."""
        with self._busy:
            # What is half overwritten must not be taken, not even if the rest never comes.
            self._version = None
            self._version = receiver.receive(self._staged)
            return self._version

    def take(self, wait: bool, before: Callable[[], None]) -> int | None:
        """Copy what has arrived into the policy.

        Args:
            wait: for what is on its way, which may have overwritten what had arrived before it;
                otherwise the policy goes on with the weights that it has.
            before: called if something has arrived, while the policy has its old weights.

        Returns:
            Its version; None if nothing has arrived since the last time.
        """
        if not self._busy.acquire(blocking=wait):
            return None
        try:
            version, self._version = self._version, None
            if version is not None:
                before()
                copy_all(self._targets, self._sources)
            return version
        finally:
            self._busy.release()
