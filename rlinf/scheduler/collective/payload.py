"""How an object travels: in the message, in shared memory, as a handle on a GPU, or by link."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.collective.codec import Encoded, decode, encode
from rlinf.scheduler.collective.device_group import arrived
from rlinf.scheduler.collective.device_links import DeviceLinks
from rlinf.scheduler.collective.link_steps import TransferSpec
from rlinf.scheduler.collective.link_tensors import HOST, LinkTaker, LinkToken
from rlinf.scheduler.collective.shm import Descriptor, SegmentPool
from rlinf.scheduler.collective.shm_reader import SegmentReader
from rlinf.scheduler.collective.shm_segment import SegmentUnavailable
from rlinf.scheduler.collective.work import Deferred, Work, gather
from rlinf.scheduler.errors import SchedulerError, WorkerDied
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.interrupts import shielded
from rlinf.scheduler.net.loop import IOLoop

if TYPE_CHECKING:
    import torch

    from rlinf.scheduler.collective.cuda_ipc import CudaExporter, CudaToken, LeaseToken

SHARED_BYTES = 32 * 1024
"""Messages from this size on go through shared memory where both sides have it."""


@dataclass
class PackedMessage:
    """What is put on the wire for one receiver.

    Attributes:
        buffers: parts that travel inside the message; none if they are in shared memory.
        descriptor: the block in shared memory, if there is one.
        nbytes: size of the object.
        transfers: its tensors that come by link.
    """

    buffers: list[Any] = field(default_factory=list)
    descriptor: Descriptor | None = None
    nbytes: int = 0
    transfers: tuple[TransferSpec, ...] = ()


class EncodedWithLinkTensors(Encoded):
    """An encoded object, some of whose tensors go by link."""

    taken: LinkTaker

    @property
    def nbytes(self) -> int:
        """Size of all, the tensors that go by link included."""
        return super().nbytes + self.taken.nbytes


class Packer:
    """The sending side of a process: encodes, and owns the shared memory that it hands out."""

    def __init__(self) -> None:
        self.pool = SegmentPool()
        self._exporter: CudaExporter | None = None
        self._lock = threading.Lock()
        # Tensors that somebody waits for, or is about to, until their reader has copied them.
        self._open: dict[int, _Waiting | None] = {}
        self._failed: dict[int, BaseException] = {}

    def encode(
        self,
        obj: Any,
        reader: str | None = None,
        devices: frozenset[int] = frozenset(),
        copy: bool = True,
        links: LinkTaker | None = None,
    ) -> tuple[Encoded, list[int]]:
        """Encode an object.

        Args:
            obj: the object.
            reader: who gets it; only needed where `devices` are given.
            devices: indices here of the GPUs that they have in common; tensors on these become
                handles.
            copy: hand out copies of such tensors, so that the originals may change at once.
            links: takes tensors that go by link. All others go through the host.

        Returns:
            The encoded object, and what the reader has to copy before originals may change.
        """
        linked = frozenset() if links is None else links.devices
        on_host = HOST in linked
        if not (on_host or (linked or devices) and cuda_in_use()):
            return encode(obj), []
        if self._exporter is None and devices:
            from rlinf.scheduler.collective.cuda_ipc import CudaExporter

            self._exporter = CudaExporter()
        tokens: list[int] = []
        exporter = self._exporter if devices else None
        if exporter is not None:
            from rlinf.scheduler.collective.cuda_ipc import LeaseToken
        with exporter.sending_to(reader) if exporter else nullcontext() as export:

            def hook(tensor: Any) -> Any:
                device = tensor.get_device()
                if device in devices and tensor.is_cuda:
                    token = export(tensor.clone() if copy else tensor)
                    if token is None or isinstance(token, LeaseToken):
                        # It goes through the host, or who lends it knows when it has been read.
                        return token
                    tokens.append(token.id)
                    if not copy:
                        with self._lock:
                            self._open[token.id] = None
                    return token
                return None if links is None else links(tensor)

            try:
                encoded = encode(obj, hook, hook_host=on_host)
            except BaseException:
                self._close(tokens)
                raise
        if links is not None and links.nbytes:
            encoded = EncodedWithLinkTensors(*encoded)
            encoded.taken = links
        return encoded, tokens

    def abandon(self, tokens: list[int]) -> None:
        """Let go of what `encode` named in a message that is not sent."""
        self._close(tokens)
        for token in tokens:
            self._exporter.abandon(token)

    def _close(self, tokens: list[int]) -> None:
        with self._lock:
            for token in tokens:
                self._open.pop(token, None)

    def when_released(self, tokens: list[int | Work], callback: Callable[..., Any]) -> None:
        """Call `callback` when all that `encode` named is done; with `error=...` if it failed."""
        transfers = [token for token in tokens if isinstance(token, Work)]
        if transfers:
            copies = [token for token in tokens if not isinstance(token, Work)]

            def transferred(done: Work) -> None:
                try:
                    done.result()
                except Exception as error:
                    callback(error=error)
                else:
                    self.when_released(copies, callback)

            gather(transfers).on_done(transferred)
            return
        with self._lock:
            errors = [self._failed.pop(token) for token in tokens if token in self._failed]
            waiting = _Waiting({token for token in tokens if token in self._open}, callback)
            for token in waiting.tokens:
                self._open[token] = waiting
            if errors:
                self._forget(waiting)
        if errors:
            callback(error=errors[0])
        elif not waiting.tokens:
            callback()

    def pack(
        self, encoded: Encoded, readers: Iterable[str], shared: bool, timeout: float
    ) -> PackedMessage:
        """Prepare an encoded object for readers that get the same bytes.

        Args:
            encoded: the object.
            readers: names of those who get it.
            shared: whether they share memory with this process.
            timeout: how long to wait for shared memory.
        """
        packed = PackedMessage([encoded.header, *encoded.buffers], None, encoded.nbytes)
        if shared and sum(map(len, packed.buffers)) >= SHARED_BYTES:
            block = self.pool.write(packed.buffers, owners=tuple(readers), timeout=timeout)
            packed.buffers, packed.descriptor = [], block.descriptor
        return packed

    def released(self, reader: str, blocks: Iterable[int], tokens: Iterable[int]) -> None:
        """A reader has let go of what it got."""
        for block in blocks:
            self.pool.release(block, reader)
        if self._exporter is None:
            return
        finished = []
        for token in tokens:
            self._exporter.release(token)
            with self._lock:
                waiting = self._open.pop(token, None)
                if waiting is not None:
                    waiting.tokens.discard(token)
                    if not waiting.tokens:
                        finished.append(waiting)
        for waiting in finished:
            waiting.callback()

    def reader_gone(self, reader: str, error: BaseException, lives: bool = False) -> None:
        """A reader cannot be reached any more: who waits for it to copy is told.

        Args:
            reader: its name.
            error: why it cannot.
            lives: whether it still reads what it has got; otherwise all that it held is free.
        """
        if not lives:
            self.pool.release_all_for(reader)
        if self._exporter is None:
            return
        lost = self._exporter.held_by(reader) if lives else self._exporter.release_all_for(reader)
        failed = []
        with self._lock:
            for token in lost:
                if token not in self._open:
                    continue
                waiting = self._open.pop(token)
                if waiting is None:
                    self._failed[token] = error
                else:
                    self._forget(waiting)
                    failed.append(waiting)
        for waiting in failed:
            waiting.callback(error=error)

    def _forget(self, waiting: _Waiting) -> None:
        for token in waiting.tokens:
            self._open.pop(token, None)


@dataclass(eq=False)
class _Waiting:
    """Somebody who waits until a reader has copied some tensors."""

    tokens: set[int]
    callback: Callable[..., Any]


class Unpacker:
    """The receiving side of a process: opens messages, and tells senders what has been let go."""

    def __init__(self, loop: IOLoop, send_release: Any, links: DeviceLinks):
        """Receive.

        Args:
            loop: I/O thread, which sends the releases.
            send_release: `send_release(connection, blocks, tokens)`.
            links: those that bring tensors to this process.
        """
        self._links = links
        self._reader = SegmentReader()
        self._loop = loop
        self._send_release = send_release
        self._let_go: deque[tuple[Connection, int | None, int | None]] = deque()
        self._pools: dict[str, int] = {}
        self._borrowed: dict[str, dict[str, tuple[CudaToken, torch.Tensor]]] = {}

    def take(
        self, connection: Connection, sender: str, buffers: list[memoryview], *place: Any
    ) -> Payload:
        """Open what arrived; one that cannot be opened keeps its turn, and its taker is told."""
        try:
            return self.open(connection, sender, buffers, *place)
        except Exception as error:
            lost = SchedulerError(f"a message from {sender} could not be opened: {error}")
            lost.__cause__ = error
            return Payload(self, connection, [], place[1], lost)

    def open(
        self,
        connection: Connection,
        sender: str,
        buffers: list[memoryview],
        descriptor: Descriptor | None,
        nbytes: int,
        transfers: tuple[TransferSpec, ...] = (),
    ) -> Payload:
        """Open what arrived; the object itself is made when it is first asked for."""
        arriving = self._links.expect(transfers) if transfers else {}
        if descriptor is None:
            return Payload(self, connection, buffers, nbytes, None, transfers, arriving)
        self._pools[sender] = descriptor.pool
        try:
            buffers = self._reader.open(descriptor, _Release(self, connection))
        except Exception as error:
            # Nobody will read it here.
            self.let_go(connection, descriptor.block, None)
            if not isinstance(error, SegmentUnavailable):
                raise
            # Its turn in the order of messages is kept; whoever takes it is told.
            lost = WorkerDied(sender, cause=f"it ended before its message could be read: {error}")
            return Payload(self, connection, [], nbytes, lost)
        return Payload(self, connection, buffers, nbytes, None, transfers, arriving)

    def read(self, descriptor: Descriptor) -> list[memoryview]:
        """Views on a block of this process itself, without any effect on who holds it."""
        return self._reader.open(descriptor, lambda _: None)

    def let_go(self, connection: Connection, block: int | None, token: int | None) -> None:
        """Note that a block or GPU handle is free; safe inside the garbage collector."""
        self._let_go.append((connection, block, token))
        self._loop.defer(self._flush)

    def _flush(self) -> None:
        freed: dict[Connection, tuple[list[int], list[int]]] = {}
        while self._let_go:
            connection, block, token = self._let_go.popleft()
            blocks, tokens = freed.setdefault(connection, ([], []))
            if block is not None:
                blocks.append(block)
            if token is not None:
                tokens.append(token)
        for connection, (blocks, tokens) in freed.items():
            self._send_release(connection, blocks, tokens)

    def borrow(self, sender: str, token: LeaseToken) -> torch.Tensor:
        """Memory that a sender lends, opened when its slot is new or has changed."""
        slots = self._borrowed.setdefault(sender, {})
        known, tensor = slots.get(token.slot, (None, None))
        if tensor is None or known != token.lease:
            from rlinf.scheduler.collective.cuda_ipc import import_tensor

            # Closes what was there before more is opened.
            del tensor
            slots.pop(token.slot, None)
            tensor = import_tensor(token.lease, clone=False)
            slots[token.slot] = token.lease, tensor
        return tensor[: token.count]

    def sender_gone(self, sender: str) -> None:
        """A sender has ended; its memory stays only as long as it is used here."""
        self._borrowed.pop(sender, None)
        pool = self._pools.pop(sender, None)
        if pool is not None:
            self._reader.forget(pool)


class _Release:
    """Called once by the finalizer of a block."""

    __slots__ = ("_unpacker", "_connection")

    def __init__(self, unpacker: Unpacker, connection: Connection):
        self._unpacker = unpacker
        self._connection = connection

    @shielded
    def __call__(self, block: int) -> None:
        self._unpacker.let_go(self._connection, block, None)


class Payload(Deferred):
    """An object that has arrived and is decoded in the thread that takes it.

    Attributes:
        nbytes: its size.
        connection: where it came from.
        transfers: its tensors that come by link.
        bound: whether only this process can decode it.
    """

    __slots__ = (
        "nbytes",
        "bound",
        "connection",
        "transfers",
        "_unpacker",
        "_buffers",
        "_arriving",
        "_waits",
        "_value",
        "_error",
        "_lock",
    )

    def __init__(
        self,
        unpacker: Unpacker,
        connection: Connection,
        buffers: list[memoryview],
        nbytes: int,
        error: Exception | None = None,
        transfers: tuple[TransferSpec, ...] = (),
        arriving: dict[int, Work] | None = None,
    ):
        self.nbytes = nbytes
        self.connection = connection
        self.transfers = transfers
        self.bound = False
        self._unpacker = unpacker
        self._buffers: list[memoryview] | None = buffers
        self._arriving = arriving or {}
        self._waits = list(self._arriving.values())
        self._error = error
        self._value: Any = None
        self._lock = threading.Lock()

    @property
    def parts(self) -> list[memoryview]:
        """Header and buffers as they came; for handing the object on without decoding it."""
        if self._error is not None:
            raise self._error
        return self._buffers or []

    def decode_after(self, work: Work) -> None:
        """Decode the object only once `work` is done; for before anybody can take it."""
        self._waits.append(work)

    def load(self) -> Any:
        """Decode the object."""
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._buffers is not None:
                header, *buffers = self._buffers
                for work in self._waits:
                    work.wait()
                self._value = decode(header, buffers, self._import)
                self._buffers = None
                self._arriving.clear()
                self._waits.clear()
            return self._value

    def _import(self, token: Any) -> Any:
        if isinstance(token, LinkToken):
            return arrived(self._arriving[token.device].result()[token.index])
        from rlinf.scheduler.collective.cuda_ipc import LeaseToken, import_tensor

        if isinstance(token, LeaseToken):
            return self._unpacker.borrow(self.connection.identity["name"], token)
        tensor = import_tensor(token)
        self._unpacker.let_go(self.connection, None, token.id)
        return tensor


def cuda_in_use() -> bool:
    """Return whether this process has tensors on a GPU, as far as can be known without torch."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
