"""Buffers on a GPU that weights leave from: they stay, and receivers keep them open.

There are two of them, so that one is filled while receivers read the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlinf.hybrid_engines.weight_sync.packing import Buffer, Layout, Packed
from rlinf.scheduler.collective.cuda_ipc import MemoryLease

SLOTS = 2
"""Buffers of a sender."""


class Staging:
    """Packs tensors into buffers in turn.

    Args:
        name: tells the buffers of one sender from those of others in the same process.
    """

    def __init__(self, name: str):
        self._name = name
        self._slots: list[_Slot | None] = [None] * SLOTS
        self._turn = 0

    @property
    def nbytes(self) -> int:
        """Memory that the buffers take."""
        return sum(slot.buffer.flat.nbytes for slot in self._slots if slot is not None)

    def begin(self) -> None:
        """Start over with the first buffer: buckets of each version then meet the same one."""
        self._turn = 0

    def pack(self, tensors: Mapping[str, Tensor], layout: Layout, verify: bool) -> Packed:
        """Put tensors of one device end to end into the next buffer, once that has been read.

        `sent` has to follow.
        """
        index = self._turn % SLOTS
        slot = self._slots[index]
        device = next(iter(tensors.values())).device
        if slot is not None:
            slot.wait()
        if slot is None or not slot.takes(layout.nbytes, device):
            # The old memory is free as soon as no receiver has it open, when it has opened the new.
            self._slots[index] = slot = None
            slot = self._slots[index] = _Slot(layout.nbytes, device, f"{self._name} {index}")
        return slot.buffer.pack(tensors, layout, verify)._replace(lent=True)

    def sent(self, reading: Any) -> None:
        """Note the work that is done when all receivers have read what was packed last."""
        slot = self._slots[self._turn % SLOTS]
        assert slot is not None
        slot.reading = reading
        self._turn += 1

    def wait(self) -> None:
        """Wait until everything has been read."""
        for slot in self._slots:
            if slot is not None:
                slot.wait()

    def drop(self) -> None:
        """Give the memory back, as soon as readers close it: when they open another, or end."""
        self._slots = [None] * SLOTS


class _Slot:
    """One buffer.

    Attributes:
        reading: done when it may be written again; None if it may.
    """

    def __init__(self, nbytes: int, device: torch.device, name: str):
        self.buffer = Buffer(torch.empty(nbytes, dtype=torch.uint8, device=device))
        self.reading: Any = None
        self._lease = MemoryLease(self.buffer.flat, name)

    def takes(self, nbytes: int, device: torch.device) -> bool:
        flat = self.buffer.flat
        return flat.nbytes >= nbytes and flat.device == device

    def wait(self) -> None:
        reading, self.reading = self.reading, None
        if reading is not None:
            reading.wait()
