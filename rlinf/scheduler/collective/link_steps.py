"""What is done on a link, step by step, and what messages say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.collective.device_group import SOURCE, DeviceGroup, TensorSpec
from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.collective.work import Work

if TYPE_CHECKING:
    import torch


class LinkAddress(NamedTuple):
    """Where receivers find the source of a link, and how all members set it up.

    Attributes:
        id: identity of the link in the whole run.
        backend: `nccl` or `gloo`.
        host: address of the source's node.
        port: of the source's store.
        members: names of the source and of all receivers.
        options: settings of the group.
    """

    id: str
    backend: str
    host: str
    port: int
    members: tuple[str, ...]
    options: CollectiveGroupOptions = CollectiveGroupOptions()

    @property
    def source(self) -> str:
        """Name of the process that sends."""
        return self.members[SOURCE]

    @property
    def receivers(self) -> tuple[str, ...]:
        """Names of the processes that receive."""
        return self.members[SOURCE + 1 :]


class TransferSpec(NamedTuple):
    """What a message says of its tensors that come over a link.

    Attributes:
        link: the link.
        number: of the transfer on the link.
        device: index of the device that the tensors are on at the source.
        tensors: what they are.
    """

    link: LinkAddress
    number: int
    device: int
    tensors: tuple[TensorSpec, ...]


class OutgoingTransfer(NamedTuple):
    """Tensors to send.

    Attributes:
        tensors: contiguous, on the device of the link.
        ready: CUDA event after which they have their values; None on the host.
        work: done when they have left.
    """

    tensors: Sequence[torch.Tensor]
    ready: Any
    work: Work

    def move(self, group: DeviceGroup, number: int, limit: float | None) -> Any:
        """Send them."""
        group.send(number, self.tensors, self.ready, limit)


class IncomingTransfer(NamedTuple):
    """Tensors to receive.

    Attributes:
        tensors: what they are.
        work: done when they have come; its outcome is the list of them.
    """

    tensors: Sequence[TensorSpec]
    work: Work

    def move(self, group: DeviceGroup, number: int, limit: float | None) -> Any:
        """Receive them."""
        return group.receive(number, self.tensors, limit)


class Closing(NamedTuple):
    """The end of a link that is not needed any more; the last thing on it.

    Attributes:
        work: done when all members have what was sent before.
    """

    work: Work

    def move(self, group: DeviceGroup, number: int, limit: float | None) -> Any:
        """Wait for the other members."""
        group.leave(number)


Step = OutgoingTransfer | IncomingTransfer | Closing
"""What a link does under one number."""
