"""The tensors of an object that go by link, taken out of it while it is encoded.

A broadcast is encoded once for each kind of receiver: those who get tensors by link, those who
share the GPU, and those who have none. What goes by link is taken out the first time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rlinf.scheduler.collective.link_steps import OutgoingTransfer, TransferSpec
from rlinf.scheduler.collective.work import Work

if TYPE_CHECKING:
    import torch

LINK_BYTES = 64 * 1024
"""Smaller tensors stay in the message: setting a transfer up takes longer than copying them."""

HOST = -1
"""What torch gives as the device index of a tensor on the host."""


class LinkKey(NamedTuple):
    """Which link tensors go over.

    Attributes:
        device: index of the device that they are on.
        receivers: names of those who get them, sorted.
    """

    device: int
    receivers: tuple[str, ...]


Route = tuple[LinkKey, ...]
"""The links that bring one receiver the tensors of an object."""


class LinkToken(NamedTuple):
    """Stands for a tensor in a message.

    Attributes:
        device: index of the device at the source, which tells the transfer that it is in.
        index: position there.
    """

    device: int
    index: int


class LinkTensors:
    """The tensors of an object that go by link, in one batch for each device that they are on.

    Attributes:
        left: one work for each transfer, done when it has left; there are none before `close`.
        specs: what messages have to say of each transfer; filled when it is sent off.
    """

    def __init__(self, routes: Mapping[str, Route], copy: bool):
        """Begin empty.

        Args:
            routes: of those receivers that get tensors by link.
            copy: take copies, so that the originals may change at once; otherwise they may change
                when all of `left` are done.
        """
        self.left: list[Work] = []
        self.specs: dict[LinkKey, TransferSpec] = {}
        self._routes = routes
        self._copy = copy
        self._batches: dict[int, list[torch.Tensor]] = {}
        self._outgoing: dict[LinkKey, OutgoingTransfer] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._batches)

    def route(self, receiver: str) -> Route:
        """Return the links that bring tensors to a receiver."""
        return self._routes.get(receiver, ())

    def taker(self, *receivers: str) -> LinkTaker:
        """Return what takes tensors out of the object while it is encoded for some receivers."""
        keys = [key for receiver in receivers for key in self.route(receiver)]
        return LinkTaker(self, frozenset(key.device for key in keys))

    def add(self, tensor: torch.Tensor, index: int) -> LinkToken:
        """Take a tensor, unless an earlier encoding did; in the thread and stream that made it.

        Args:
            tensor: the tensor.
            index: how many on the same device came before it in this encoding.

        Raises:
            TypeError: another one was at this place in an earlier encoding.
        """
        import torch

        device = tensor.get_device()
        batch = self._batches.setdefault(device, [])
        if index == len(batch):
            tensor = tensor.resolve_conj().resolve_neg()
            if self._copy:
                tensor = tensor.clone(memory_format=torch.contiguous_format)
            batch.append(tensor.contiguous())
        known = batch[index]
        if (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
            raise TypeError(
                f"pickling the object twice gave a tensor of {tuple(known.shape)} {known.dtype} "
                f"and one of {tuple(tensor.shape)} {tensor.dtype} in the same place; its "
                "__reduce__ or __getstate__ must give the same tensors each time"
            )
        return LinkToken(device, index)

    def nbytes(self, device: int) -> int:
        """Return the size of all tensors on a device."""
        return sum(tensor.nbytes for tensor in self._batches.get(device, ()))

    def close(self) -> None:
        """All are in it; note when they have their values."""
        for device, batch in self._batches.items():
            ready = None
            if device != HOST:
                import torch

                ready = torch.cuda.Event(blocking=True)
                ready.record(torch.cuda.current_stream(device))
            keys = {key for route in self._routes.values() for key in route}
            for key in sorted(key for key in keys if key.device == device):
                names = ", ".join(key.receivers)
                work = Work(f"{names} to take tensors that were sent to it")
                self._outgoing[key] = OutgoingTransfer(batch, ready, work)
                self.left.append(work)

    def outgoing(self) -> dict[LinkKey, OutgoingTransfer]:
        """Return what to send over which link."""
        return self._outgoing

    def transfers(self, receiver: str) -> tuple[TransferSpec, ...]:
        """Return what the message to a receiver has to say, once all is sent off."""
        return tuple(self.specs[key] for key in self.route(receiver) if key in self.specs)


class LinkTaker:
    """Takes tensors out of one encoding of an object.

    Attributes:
        devices: indices of the devices whose tensors it takes.
        tensors: where it puts them.
    """

    def __init__(self, tensors: LinkTensors, devices: frozenset[int]):
        self.devices = devices
        self.tensors = tensors
        self._taken: Counter[int] = Counter()

    def __call__(self, tensor: torch.Tensor) -> LinkToken | None:
        """Take a tensor if it is on one of the devices, and worth a transfer of its own."""
        device = tensor.get_device()
        if device not in self.devices or tensor.nbytes < LINK_BYTES:
            return None
        token = self.tensors.add(tensor, self._taken[device])
        self._taken[device] += 1
        return token

    @property
    def nbytes(self) -> int:
        """Size of all that it took."""
        return sum(map(self.tensors.nbytes, self._taken))
