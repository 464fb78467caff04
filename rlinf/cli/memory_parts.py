"""What takes memory in a worker, in the terms of a prediction."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
DEVICE_CONTEXT = 500 * MIB
"""What CUDA itself takes of a device for each process that uses it."""


class CannotPredict(ValueError):
    """Something that memory depends on is not known before the run starts."""


@dataclass(frozen=True)
class Part:
    """Something that takes memory.

    Attributes:
        name: what.
        bytes: how much.
        exact: whether that is counted; False is an estimate.
        on_device: whether it lies in the memory of an accelerator, if the worker has one.
    """

    name: str
    bytes: int
    exact: bool = True
    on_device: bool = True


@dataclass(frozen=True)
class WorkerMemory:
    """What each worker of a component takes.

    Attributes:
        component: its name.
        count: workers of it.
        accelerator: whether they have one.
        parts: what takes memory.
        note: what else is to be known, in words; may be empty.
    """

    component: str
    count: int
    accelerator: bool
    parts: tuple[Part, ...]
    note: str = ""

    def total(self, on_device: bool) -> int:
        """Return the bytes on the accelerator, or in the memory of the machine."""
        return sum(p.bytes for p in self.parts if (self.accelerator and p.on_device) == on_device)
