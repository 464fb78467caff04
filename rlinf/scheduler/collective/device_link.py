"""A link: an ordered, one-directional stream of tensors from one process to another.

A link moves tensors between GPUs without the host, by NCCL (see `pair_group`). Messages go their
usual way and only say which tensors come over which link, and under which number. Each side has one
thread per link, which sends or receives in the order of these numbers, so that the operations of
both sides pair up whatever the order in which messages are sent and arrive. The receiving thread
begins when a message has arrived, whether or not somebody asks for it: nothing can be stuck behind
a message that nobody takes.

When something goes wrong on a link, all that is under way on it fails on both sides; the next
message makes a new one.

NCCL is tested only between two processes on one GPU, each told by NCCL_HOSTID that it is on a host
of its own, so over sockets. Between GPUs of one host (NVLink, PCIe) and over InfiniBand it has
never run. Tests without a GPU use gloo and tensors of the host (`RLINF_DEVICE_LINK=gloo`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.collective import pair_group
from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.collective.pair_group import RECEIVER, SENDER, PairGroup, TensorSpec
from rlinf.scheduler.collective.work import Work
from rlinf.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    import torch

_GRACE = 10.0
"""Seconds in which the death of a peer is expected to be known after a link to it broke."""


class DeviceLinkError(SchedulerError):
    """Tensors were lost because a link between two devices failed."""


class LinkAddress(NamedTuple):
    """Where a receiver finds the sender's side of a link, and how both sides set it up."""

    id: str
    backend: str
    host: str
    port: int
    options: CollectiveGroupOptions = CollectiveGroupOptions()


class TransferSpec(NamedTuple):
    """What a message says of its tensors that come over a link."""

    link: LinkAddress
    number: int
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

    def move(self, group: PairGroup, number: int, limit: float | None) -> Any:
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

    def move(self, group: PairGroup, number: int, limit: float | None) -> Any:
        """Receive them."""
        return group.receive(number, self.tensors, limit)


class LinkContext(NamedTuple):
    """What links know of the process that they belong to.

    Attributes:
        name: its name.
        limit: seconds after which a transfer that has begun is given up.
        ended: tells why a peer has ended, or None while it lives; may block.
        on_broken: called in a link's thread when the link has broken on its own, with the reason,
            after all that waits was told.
    """

    name: str
    limit: float | None
    ended: Callable[[str], BaseException | None]
    on_broken: Callable[[DeviceLink, BaseException], None]


class DeviceLink:
    """One side of a link.

    Attributes:
        peer: name of the process on the other side.
        address: where the sender's side is.
    """

    def __init__(
        self,
        context: LinkContext,
        peer: str,
        address: LinkAddress,
        rank: int,
        device: int,
        listener: Any = None,
    ):
        """Use `outgoing` or `incoming`."""
        self.peer = peer
        self.address = address
        self._rank = rank
        self._device = device
        self._context = context
        self._listener = listener
        self._state = threading.Condition()
        self._posted: dict[int, OutgoingTransfer | IncomingTransfer] = {}
        self._count = 0
        self._next = 0
        self._moving: OutgoingTransfer | IncomingTransfer | None = None
        self._error: BaseException | None = None
        self._server: pair_group.Server | None = None
        self._group: PairGroup | None = None
        self._taking_down = threading.Lock()
        name = f"rlinf-link {('to', 'from')[rank]} {peer}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def outgoing(
        cls,
        context: LinkContext,
        peer: str,
        link_id: str,
        backend: str,
        host: str,
        device: int,
        options: CollectiveGroupOptions,
    ) -> DeviceLink:
        """Return the sender's side of a new link.

        Args:
            context: this process.
            peer: name of the receiver.
            link_id: identity of the link in the whole run.
            backend: `nccl` or `gloo`.
            host: address of this process's node, on which the receiver finds it.
            device: index of the GPU that the tensors are on.
            options: settings of the group.
        """
        listener = pair_group.listen(host)
        address = LinkAddress(link_id, backend, host, listener.getsockname()[1], options)
        return cls(context, peer, address, SENDER, device, listener)

    @classmethod
    def incoming(
        cls, context: LinkContext, peer: str, address: LinkAddress, device: int
    ) -> DeviceLink:
        """Return the receiver's side of a link that a peer has made.

        `device` is where tensors come.
        """
        return cls(context, peer, address, RECEIVER, device)

    # -- any thread ---------------------------------------------------------------------------

    def send(self, outgoing: OutgoingTransfer) -> TransferSpec:
        """Queue tensors; the message that brings the transfer to the receiver must follow."""
        with self._state:
            number = self._count
            self._count += 1
        self._post(number, outgoing)
        specs = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in outgoing.tensors]
        return TransferSpec(self.address, number, tuple(specs))

    def receive(self, transfer: TransferSpec, work: Work) -> None:
        """Receive tensors when it is their turn."""
        self._post(transfer.number, IncomingTransfer(transfer.tensors, work))

    def _post(self, number: int, batch: OutgoingTransfer | IncomingTransfer) -> None:
        with self._state:
            error = self._error
            if error is None:
                self._posted[number] = batch
                self._state.notify_all()
        if error is not None:
            batch.work.finish(error=error)

    def end(self, error: BaseException) -> None:
        """Fail what is under way, and what comes later, and end the thread."""
        with self._state:
            if self._error is not None:
                return
            self._error = error
            batches = [*([self._moving] if self._moving else []), *self._posted.values()]
            self._posted.clear()
            self._state.notify_all()
        for batch in batches:
            batch.work.finish(error=error)
        # Takes half a second with NCCL.
        threading.Thread(target=self._take_down, name="rlinf-link end", daemon=True).start()

    def join(self, deadline: float) -> None:
        """Wait, until a time of the monotonic clock, for the end of a link that was ended."""
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _take_down(self) -> None:
        # The link's thread and that of `end` may both come; the second waits for the first.
        with self._taking_down:
            server, self._server = self._server, None
            group, self._group = self._group, None
            if server is not None:
                server.close()
            if group is not None:
                group.abort()

    # -- the link's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            group = self._connect()
            while (batch := self._take()) is not None:
                outcome = batch.move(group, self._next - 1, self._context.limit)
                with self._state:
                    self._moving = None
                    error = self._error
                # What an ended link has moved may be garbage.
                batch.work.finish(outcome, error)
                del batch, outcome
        except Exception as error:
            self._broken(error)
        finally:
            self._take_down()

    def _connect(self) -> PairGroup:
        if self._listener is not None:
            self._server = pair_group.Server(self._listener)
        address = self.address
        group = PairGroup(
            address.backend,
            self._rank,
            self._context.name < self.peer,
            self._device,
            (address.host, address.port),
            address.options,
            given_up=lambda: self._error is not None,
        )
        self._group = group
        return group

    def _take(self) -> OutgoingTransfer | IncomingTransfer | None:
        with self._state:
            self._state.wait_for(lambda: self._error is not None or self._next in self._posted)
            if self._error is not None:
                return None
            self._moving = self._posted.pop(self._next)
            self._next += 1
            return self._moving

    def _broken(self, cause: Exception) -> None:
        # If the peer has died, that is what is to be told, and it is known in a moment.
        deadline = time.monotonic() + _GRACE
        error: BaseException | None = None
        while error is None and self._error is None and time.monotonic() < deadline:
            error = self._context.ended(self.peer)
            time.sleep(0.02)
        if self._error is not None:
            # It was ended, and this is how its thread noticed.
            return
        if error is None:
            way = ("to", "from")[self._rank]
            error = DeviceLinkError(
                f"tensors {way} {self.peer} were lost: the {self.address.backend} link failed with "
                f"{type(cause).__name__}: {cause}. RLINF_DEVICE_LINK=off uses the host instead."
            )
            error.__cause__ = cause
        self.end(error)
        self._context.on_broken(self, error)
