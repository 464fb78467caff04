"""Channel items whose large tensors stay on the producer's GPU until a consumer is named for them.

The producer keeps a copy of the item, and encodes it for the consumer that the keeper names: with
handles for one on the same GPU, and through the host for any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from rlinf.scheduler.collective.codec import Encoded
    from rlinf.scheduler.collective.endpoint import Endpoint

KEPT_BYTES = 8 << 20
"""Smaller tensors go through the host: opening memory of another process takes milliseconds."""

MAX_KEPT_BYTES = 1 << 30
"""Most that the items of a process take on its GPUs; what comes later goes through the host."""


class DeviceItem(NamedTuple):
    """A copy of an item, whose tensors are where those of the item were.

    Attributes:
        obj: the copy.
        nbytes: its size.
        device_bytes: what it takes on GPUs.
        ready: events after which its tensors have their values.
    """

    obj: Any
    nbytes: int
    device_bytes: int
    ready: list[torch.cuda.Event]

    def encode_for(self, endpoint: Endpoint, consumer: str) -> tuple[Encoded, bool]:
        """Encode it for a consumer that has been located.

        Returns:
            The encoded item, and whether nobody else can decode it.
        """
        for event in self.ready:
            event.synchronize()
        # A process cannot open its own memory.
        own = consumer == endpoint.name or not endpoint.shares_memory(consumer)
        devices = frozenset() if own else endpoint.shared_devices(consumer)
        encoded, tokens = endpoint.packer.encode(self.obj, consumer, devices, copy=False)
        return encoded, bool(tokens)


def encode_item(endpoint: Endpoint, obj: Any, room: Callable[[], int]) -> Encoded | DeviceItem:
    """Encode an item, or copy it if it has large tensors on a GPU.

    Args:
        endpoint: the producer.
        obj: the item.
        room: tells how many bytes the copy may take on GPUs.
    """
    if not endpoint.visible:
        return endpoint.packer.encode(obj)[0]
    from rlinf.scheduler.collective.codec import decode, encode
    from rlinf.scheduler.collective.payload import cuda_in_use

    if not cuda_in_use():
        return encode(obj)
    kept: list[torch.Tensor] = []
    taken, most = 0, room()

    def keep(tensor: torch.Tensor) -> int | None:
        nonlocal taken
        if not tensor.is_cuda or tensor.nbytes < KEPT_BYTES or taken + tensor.nbytes > most:
            return None
        taken += tensor.nbytes
        kept.append(tensor.clone())
        return len(kept) - 1

    encoded = encode(obj, keep)
    if not kept:
        return encoded
    # The producer may change what is on the host as well.
    buffers = [bytearray(buffer) for buffer in encoded.buffers]
    copy = decode(encoded.header, buffers, kept.__getitem__)
    ready = [_event(device) for device in sorted({tensor.get_device() for tensor in kept})]
    return DeviceItem(copy, encoded.nbytes + taken, taken, ready)


def _event(device: int) -> torch.cuda.Event:
    import torch

    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event
