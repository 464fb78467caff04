"""All links of a process: which tensors travel by link, over which, and what ends them.

A tensor goes by link if it is large, on a GPU that the receiver does not have, and the receiver has
one of the same kind. All others go through the host, or by CUDA IPC if the GPU is shared. Links are
made when they are first needed: one per receiver and GPU of the sender.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rlinf.scheduler.collective import pair_group
from rlinf.scheduler.collective.device_link import (
    DeviceLink,
    DeviceLinkError,
    LinkContext,
    OutgoingTransfer,
    TransferSpec,
)
from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.collective.work import Work, finished
from rlinf.scheduler.env_vars import ClusterEnvVar

if TYPE_CHECKING:
    import torch

    from rlinf.scheduler.address import WorkerInfo
    from rlinf.scheduler.net.connection import Connection
    from rlinf.scheduler.spec import RunSpec

LINK_BYTES = 64 * 1024
"""Smaller tensors stay in the message: setting a transfer up takes longer than copying them."""

HOST = -1
"""What torch gives as the device index of a tensor on the host."""

_CLOSING = 5.0
"""Seconds that the end of a process waits for the end of its links."""

_MODES = ("nccl", "gloo", "off")


class LinkToken(NamedTuple):
    """Stands for a tensor in a message.

    Attributes:
        batch: index of the batch, and of the transfer, that it is in.
        index: position there.
    """

    batch: int
    index: int


class LinkTensors:
    """The tensors of a message that go by link, in one batch for each GPU that they are on.

    Attributes:
        nbytes: size of all.
        left: one work for each batch, done when it has left.
    """

    def __init__(self, peer: str, copy: bool):
        """Begin empty.

        Args:
            peer: name of the receiver.
            copy: take copies, so that the originals may change at once; otherwise they may change
                when all of `left` are done.
        """
        self.nbytes = 0
        self.left: list[Work] = []
        self._peer = peer
        self._copy = copy
        self._batches: dict[int, list[torch.Tensor]] = {}
        self._outgoing: dict[int, OutgoingTransfer] = {}

    def add(self, tensor: torch.Tensor) -> LinkToken:
        """Take a tensor; in the thread and stream that made it."""
        import torch

        device = tensor.get_device()
        tensor = tensor.resolve_conj().resolve_neg()
        if self._copy:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        batch = self._batches.setdefault(device, [])
        batch.append(tensor.contiguous())
        self.nbytes += tensor.nbytes
        return LinkToken(list(self._batches).index(device), len(batch) - 1)

    def close(self) -> None:
        """All are in it; notes when they have their values."""
        import torch

        for device, batch in self._batches.items():
            ready = None
            if device != HOST:
                ready = torch.cuda.Event(blocking=True)
                ready.record(torch.cuda.current_stream(device))
            work = Work(f"{self._peer} to take tensors that were sent to it")
            self._outgoing[device] = OutgoingTransfer(batch, ready, work)
            self.left.append(work)

    def outgoing(self) -> dict[int, OutgoingTransfer]:
        """Return what to send, by the index of the device."""
        return self._outgoing


class LinkHost(Protocol):
    """The process that has links; see `Endpoint`."""

    name: str
    run: RunSpec
    node_ip: str
    visible: list[int]

    def on(self, kind: str, handler: Callable[..., None]) -> None:
        """Let a handler take messages of a kind."""

    def post_soon(self, peer: str, kind: str, fields: tuple[Any, ...]) -> None:
        """Send a small message to a peer, from any thread."""

    def info(self, peer: str) -> WorkerInfo | None:
        """Return what is known of a peer."""

    def gone(self, peer: str) -> BaseException | None:
        """Return why a peer has ended; None as far as is known."""

    def lost(self, peer: str) -> BaseException | None:
        """Return why a peer can no longer be reached; may wait until that is known."""


class DeviceLinks:
    """The links of a process, in both directions."""

    def __init__(self, endpoint: LinkHost):
        """Make no link yet.

        Raises:
            ValueError: RLINF_DEVICE_LINK is none of `nccl`, `gloo` and `off`.
        """
        self._endpoint = endpoint
        self._mode = ClusterEnvVar.DEVICE_LINK.get("nccl")
        if self._mode not in _MODES:
            raise ValueError(f"RLINF_DEVICE_LINK={self._mode!r}; it must be one of {_MODES}")
        limit = endpoint.run.timeout("recv")
        self._context = LinkContext(endpoint.name, limit, endpoint.lost, self._on_broken)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._reach: dict[str, frozenset[int]] = {}
        self._options: dict[str, CollectiveGroupOptions] = {}
        self._out: dict[tuple[str, int], DeviceLink] = {}
        self._in: dict[str, DeviceLink] = {}
        self._ended: dict[str, BaseException] = {}
        endpoint.on("unlink", self._on_unlink)

    # -- sending ------------------------------------------------------------------------------

    def set_options(self, peer: str, options: CollectiveGroupOptions) -> None:
        """Set up later links to a peer in this way.

        Raises:
            TypeError: these are no options.
            ValueError: others were set before, or there is a link with others.
        """
        if not isinstance(options, CollectiveGroupOptions):
            raise TypeError(
                f"options must be CollectiveGroupOptions or None, not {type(options).__name__}"
            )
        with self._lock:
            linked = any(link.peer == peer for link in self._out.values())
            known = self._options.get(peer, CollectiveGroupOptions() if linked else options)
            if known != options:
                raise ValueError(
                    f"tensors to {peer} go with {known}; options count at the first contact of two "
                    f"workers, and cannot be changed to {options} later"
                )
            self._options[peer] = options

    def devices_for(self, peer: str) -> frozenset[int]:
        """Return the indices of the devices whose tensors go to a peer by link."""
        reach = self._reach.get(peer)
        if reach is None:
            reach = self._reach[peer] = self._find_reach(peer)
        return reach

    def _find_reach(self, peer: str) -> frozenset[int]:
        if self._mode == "gloo":
            return frozenset({HOST})
        info = self._endpoint.info(peer)
        kind = os.environ.get("ACCELERATOR_TYPE")
        theirs = set(info.available_accelerators) if info is not None else set()
        if self._mode == "off" or not theirs or info.accelerator_type != kind:
            return frozenset()
        seen = self._endpoint.visible
        return frozenset(i for i, device in enumerate(seen) if device not in theirs)

    def takes(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor on one of these devices is worth a transfer of its own."""
        return tensor.nbytes >= LINK_BYTES and pair_group.available(self._mode)

    def dispatch(self, peer: str, link_tensors: LinkTensors) -> tuple[TransferSpec, ...]:
        """Send off what a message has; the message must follow.

        Raises:
            WorkerDied: the peer has ended.
        """
        outgoing = link_tensors.outgoing().items()
        return tuple(self._link_to(peer, device).send(batch) for device, batch in outgoing)

    def _link_to(self, peer: str, device: int) -> DeviceLink:
        endpoint = self._endpoint
        with self._lock:
            link = self._out.get((peer, device))
            if link is None:
                self._close_at_exit()
                link_id = f"{endpoint.name} {secrets.token_hex(8)}"
                link = self._out[peer, device] = DeviceLink.outgoing(
                    self._context,
                    peer,
                    link_id,
                    self._mode,
                    endpoint.node_ip,
                    device,
                    self._options.get(peer, CollectiveGroupOptions()),
                )
        error = endpoint.gone(peer)
        if error is not None:
            self.peer_gone(peer, error)
            raise error
        return link

    # -- receiving ----------------------------------------------------------------------------

    def expect(self, sender: str, transfers: tuple[TransferSpec, ...]) -> list[Work]:
        """Begin to receive what a message says; works whose outcomes are lists of tensors."""
        return [self._receive(sender, transfer) for transfer in transfers]

    def _receive(self, sender: str, transfer: TransferSpec) -> Work:
        address = transfer.link
        with self._lock:
            if address.id in self._ended:
                return finished(error=self._ended[address.id])
            link = self._in.get(address.id)
            if link is None:
                self._close_at_exit()
                link = self._in[address.id] = DeviceLink.incoming(
                    self._context, sender, address, _own_device()
                )
        work = Work(f"tensors from {sender}", self._context.name, self._context.limit)
        link.receive(transfer, work)
        return work

    # -- ends ---------------------------------------------------------------------------------

    def _close_at_exit(self) -> None:
        # NCCL does not survive the end of CUDA, which comes with that of the interpreter.
        if not self._out and not self._in:
            atexit.unregister(self.close)
            atexit.register(self.close)

    def peer_gone(self, peer: str, error: BaseException) -> None:
        """A peer has ended: fails what is under way between it and this process."""
        self._reach.pop(peer, None)
        self._end([link for link in self._all() if link.peer == peer], error)

    def close(self) -> None:
        """End all links, and wait a moment for that; in a forked child they are the parent's."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        links = self._all()
        self._end(links, DeviceLinkError(f"{self._context.name} has ended"))
        deadline = time.monotonic() + _CLOSING
        for link in links:
            link.join(deadline)

    def _on_broken(self, link: DeviceLink, error: BaseException) -> None:
        self._end([link], error)
        self._endpoint.post_soon(link.peer, "unlink", (link.address.id, str(error)))

    def _on_unlink(self, peer: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        link_id, reason = fields
        error = DeviceLinkError(f"{peer} says: {reason}")
        with self._lock:
            # Messages of the link may come later still.
            self._ended.setdefault(link_id, error)
        self._end([link for link in self._all() if link.address.id == link_id], error)

    def _all(self) -> list[DeviceLink]:
        with self._lock:
            return [*self._out.values(), *self._in.values()]

    def _end(self, links: list[DeviceLink], error: BaseException) -> None:
        with self._lock:
            for link in links:
                self._ended.setdefault(link.address.id, error)
            self._out = {key: link for key, link in self._out.items() if link not in links}
            self._in = {key: link for key, link in self._in.items() if link not in links}
        for link in links:
            link.end(error)


def _own_device() -> int:
    """Index of the first GPU of this process, among those that it sees."""
    isolated = os.environ.get("ISOLATE_ACCELERATOR", "1") == "1"
    return 0 if isolated else max(0, int(os.environ["LOCAL_ACCELERATOR_RANK"]))
