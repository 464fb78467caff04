"""A framed, full-duplex connection: messages of one small meta part and any number of buffers.

Frame: `<u64 number><u64 body length><u32 meta length><u32 number of buffers>`, between hosts a seal
(`rlinf.scheduler.net.seals`) unless all is encrypted, then the body: `<u64 length> * buffers,
<meta>, <buffers>`. Messages of each direction are numbered from 1 on, and a message with another
number than the next, or with a wrong seal, ends the connection.

Sending writes straight from the caller's thread as long as the kernel takes it; only the rest is
left to the I/O thread. Receiving happens in the I/O thread, or in a thread that has nothing to do
but to wait for what this connection brings: it reads the socket itself, which saves the hand-over
from one thread to the other. A large body is received into its own memory, without passing through
the read buffer.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.net import seals
from rlinf.scheduler.net.buffers import POOL
from rlinf.scheduler.net.flushed import Flushed
from rlinf.scheduler.net.interrupts import shielded
from rlinf.scheduler.net.loop import READ, IOLoop
from rlinf.scheduler.net.seals import Seal, SealKeys, check_body, make_seal, read_seal

if TYPE_CHECKING:
    from rlinf.scheduler.net.tls import TlsSocket
    from rlinf.scheduler.net.waker import Waker

_HEAD = struct.Struct("<QQII")
_READ_SIZE = 1 << 16
_LARGE_READ = 1 << 20
_IOV = 512
_EXPIRY_SECONDS = 1.0
COPY_LIMIT = 1 << 16

OnMessage = Callable[["Connection", bytes, list[memoryview]], None]
OnClose = Callable[["Connection", str], None]


class Numbers:
    """The numbers of the last messages of a stream, one per direction.

    They belong to the stream and not to the connection that carries it: a connection that takes
    the place of a broken one goes on with the numbers of that one, or shows what was lost.

    Attributes:
        sent: number of the last message that was sent.
        received: number of the last message that was received.
    """

    __slots__ = ("sent", "received")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


class Connection:
    """One authenticated peer.

    Attributes:
        identity: what the peer said of itself in the handshake.
        closed: why the connection ended, or None while it lives.
        numbers: numbers of its messages; may be replaced before it starts.
        over: set when its owner has been told of its end.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        loop: IOLoop,
        on_message: OnMessage,
        on_close: OnClose,
        identity: dict[str, Any],
        keys: SealKeys | None = None,
    ):
        self.sock = sock
        self._keys = keys
        self._head_size = _HEAD.size + (0 if keys is None else seals.SIZE)
        self._head = b""
        self._seal: Seal | None = None
        self.identity = identity
        self.closed: str | None = None
        self.numbers = Numbers()
        self.over = threading.Event()
        self.sent_bytes = 0
        self.received_bytes = 0
        self._loop = loop
        self._on_message = on_message
        self._on_close = on_close
        self._lock = threading.Lock()
        self._pending: deque[memoryview | Flushed] = deque()
        self._buffer = bytearray(_READ_SIZE)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._body: memoryview | None = None
        self._body_filled = 0
        self._lowest = 1
        # Under TLS the kernel does not see what is left to read, nor how much of it.
        self._plain = isinstance(sock, socket.socket)
        self._count = 0
        self._meta_size = 0
        self._write_error: str | None = None
        # Held by whoever reads: the I/O thread, or a thread that has borrowed the connection.
        self._reading = threading.Lock()
        self._borrowed = False
        self._ending: str | None = None
        sock.setblocking(False)

    def start(self) -> None:
        """Begin to receive; one that a waiting thread has read to its end already does not."""
        with self._lock:
            if self.closed is None:
                # It may have been given something to write already.
                self._loop.add(self, self._events())

    def fileno(self) -> int:
        """File descriptor of the socket."""
        return self.sock.fileno()

    # -- sending ------------------------------------------------------------------------------

    @shielded
    def send(
        self,
        meta: bytes,
        buffers: Sequence[Any] = (),
        flushed: Flushed | None = None,
        covered: int | None = None,
    ) -> None:
        """Send one message; never blocks.

        What the kernel does not take at once is written later by the I/O thread. Small remainders
        are copied. Large buffers are referenced: their owner must not change them before `flushed`.

        Args:
            meta: the small part.
            buffers: the others.
            flushed: is told when all has been given to the kernel.
            covered: how many of the buffers, from the first on, are proved to be unchanged on their
                way between hosts; None is all.

        Raises:
            ConnectionError: the connection is closed, or broke while this was written.
        """
        if self.closed is not None:
            # Not only with the lock: in a forked child another thread may hold it for ever.
            raise ConnectionError(self.closed)
        views = [memoryview(b).cast("B") for b in buffers]
        sizes = struct.pack(f"<{len(views)}Q", *[v.nbytes for v in views]) if views else b""
        size = len(sizes) + len(meta) + sum(v.nbytes for v in views)
        parts: list[Any] = [b"", *(v for v in views if v.nbytes)]
        with self._lock:
            reason = self.closed or self._write_error
            if reason is not None:
                raise ConnectionError(reason)
            self.numbers.sent += 1
            head = _HEAD.pack(self.numbers.sent, size, len(meta), len(views))
            seal = b""
            if self._keys is not None:
                proved = views[:covered]
                proof = (sizes, meta, *proved)
                seal = make_seal(self._keys.send, head, len(proved), proof)
            parts[0] = head + seal + sizes + meta
            self.sent_bytes += self._head_size + size
            rest = parts if self._pending else self._write(parts)
            if self._write_error is not None:
                raise ConnectionError(self._write_error)
            if rest:
                left = sum(len(p) for p in rest)
                if left <= COPY_LIMIT:
                    self._pending.append(memoryview(b"".join(rest)))
                else:
                    self._pending.extend(memoryview(p) for p in rest)
                if flushed is not None:
                    self._pending.append(flushed)
                self._watch()
                return
        if flushed is not None:
            flushed.set()

    def _write(self, parts: list[Any]) -> list[Any]:
        """Write what the kernel takes; return what is left."""
        first = 0
        while first < len(parts):
            sent = self._give(parts[first : first + _IOV])
            if sent is None:
                break
            while first < len(parts) and sent >= len(parts[first]):
                sent -= len(parts[first])
                first += 1
            if sent:
                parts[first] = memoryview(parts[first])[sent:]
        return parts[first:]

    def _give(self, parts: list[Any]) -> int | None:
        """Give bytes to the kernel; None if it takes none now, or never will again."""
        try:
            return self.sock.sendmsg(parts)
        except BlockingIOError:
            return None
        except OSError as error:
            self._write_error = f"writing failed: {error}"
            # What the peer had sent can still be read; after that the reader finds the end.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            return None

    def on_writable(self) -> None:
        """Go on with what could not be written at once (I/O thread)."""
        done: list[Flushed] = []
        pending = self._pending
        with self._lock:
            while pending and self._write_error is None:
                if isinstance(pending[0], Flushed):
                    done.append(pending.popleft())  # type: ignore[arg-type]
                    continue
                parts = list(itertools.takewhile(_is_bytes, itertools.islice(pending, _IOV)))
                sent = self._give(parts)
                if sent is None:
                    break
                while sent and sent >= len(pending[0]):  # type: ignore[arg-type]
                    sent -= len(pending.popleft())  # type: ignore[arg-type]
                if sent:
                    pending[0] = pending[0][sent:]  # type: ignore[index]
            if not pending or self._write_error is not None:
                self._watch()
        for flushed in done:
            flushed.set()

    def _watch(self) -> None:
        """Tell the I/O thread what to look for; with the lock held."""
        self._loop.modify(self, self._events())

    def _events(self) -> int:
        events = 0 if self._borrowed else READ
        writes = bool(self._pending) and self._write_error is None
        return events | select.EPOLLOUT if writes else events

    # -- receiving ----------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Read what is there and hands complete messages to the owner (I/O thread)."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            ending = self._read()
        finally:
            self._reading.release()
        if ending is not None:
            self._finish(ending)

    @shielded
    def read_until(self, done: Callable[[], bool], waker: Waker, limit: float | None) -> None:
        """Read in the calling thread, instead of the I/O thread, until `done()`.

        Returns early when the deadline has passed, when the connection ends, or at once if another
        thread reads it already.

        Args:
            done: whether what the caller waits for has come.
            waker: wakes the caller if that comes from elsewhere.
            limit: deadline in seconds.
        """
        if not self._reading.acquire(blocking=False):
            return
        try:
            with self._lock:
                if self.closed is not None:
                    return
                self._borrowed = True
                self._watch()
            deadline = None if limit is None else time.monotonic() + limit
            while not done() and self._ending is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                # A signal may raise here, and nowhere else: no byte that was read is lost.
                if waker.wait(self.sock.fileno(), left):
                    self._ending = self._read() or self._ending
        finally:
            with self._lock:
                self._borrowed = False
                self._reading.release()
                self._watch()
            if self._ending is not None:
                self.close(self._ending)

    def _read(self) -> str | None:
        """Read what is there; return why the connection ended, if it did."""
        try:
            while True:
                if self._body is not None:
                    target = self._body[self._body_filled :]
                else:
                    if self._start and self._start == self._end:
                        self._start = self._end = 0
                    target = self._view[self._end :]
                count = self.sock.recv_into(target)
                if count == 0:
                    return self._write_error or self._end_of_stream()
                self.received_bytes += count
                if self._body is not None:
                    self._body_filled += count
                    if self._body_filled == len(self._body):
                        body, self._body = self._body, None
                        self._wake_after(1)
                        self._deliver(body)
                        del body
                    elif len(self._body) - self._body_filled < self._lowest:
                        self._wake_after(1)
                else:
                    self._end += count
                    self._parse()
                if count < len(target) and self._plain:
                    return None
        except BlockingIOError:
            return None
        except (OSError, MemoryError) as error:
            return f"reading failed: {error}"

    def _wake_after(self, due: int) -> None:
        """Let the kernel wake the reader when so much of a large body is there, not bit by bit."""
        lowest = _LARGE_READ if due > 2 * _LARGE_READ else 1
        within = self.sock.family == socket.AF_UNIX
        if lowest != self._lowest and self._plain and not within:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowest)
            self._lowest = lowest

    def _end_of_stream(self) -> str:
        partly = self._body is not None or self._end > self._start
        where = f" in the middle of message {self.numbers.received + 1}" if partly else ""
        return f"the peer closed the connection{where}"

    def _parse(self) -> None:
        while True:
            available = self._end - self._start
            if available < self._head_size:
                break
            begin = self._start + self._head_size
            self._open(bytes(self._view[self._start : begin]))
            number, body_size, self._meta_size, self._count = _HEAD.unpack(self._head)
            if number != self.numbers.received + 1:
                raise ConnectionError(
                    f"message {number} came where message {self.numbers.received + 1} was due"
                )
            have = min(self._end - begin, body_size)
            if have == body_size:
                body = memoryview(bytes(self._view[begin : begin + body_size]))
                self._start = begin + body_size
                self._deliver(body)
                continue
            if self._head_size + body_size <= _READ_SIZE:
                break
            self._body = _allocate(number, body_size)
            self._body[:have] = self._view[begin : begin + have]
            self._body_filled = have
            self._wake_after(body_size - have)
            self._start = self._end = 0
            return
        if self._start:
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _open(self, whole: bytes) -> None:
        """Take the head of a frame.

        Raises:
            ConnectionError: the peer did not write it.
        """
        if self._keys is None:
            self._head = whole
        elif whole[: _HEAD.size] != self._head or self._seal is None:
            self._head = whole[: _HEAD.size]
            self._seal = read_seal(self._keys.receive, self._head, whole[_HEAD.size :])

    def _deliver(self, body: memoryview) -> None:
        self.numbers.received += 1
        sizes = struct.unpack_from(f"<{self._count}Q", body) if self._count else ()
        position = 8 * self._count + self._meta_size
        meta = bytes(body[8 * self._count : position])
        buffers = []
        for size in sizes:
            buffers.append(body[position : position + size])
            position += size
        if self._keys is not None:
            covered = (body[: 8 * self._count + self._meta_size], *buffers[: self._seal.covered])
            check_body(self._keys.receive, self._head, self._seal, covered)
            self._seal = None
        try:
            self._on_message(self, meta, buffers)
        except Exception:
            # A bug in one handler must be seen, and must not end the service of all the others.
            traceback.print_exc()

    # -- ending -------------------------------------------------------------------------------

    @shielded
    def close(self, reason: str = "closed by this side") -> None:
        """End the connection; the I/O thread reports it through `on_close`."""
        self._loop.call_soon(lambda: self._finish(reason))

    def shut(self) -> None:
        """End the connection once all that has arrived here has been read."""
        with self._lock:
            if self.closed is None:
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)

    def expire(self) -> None:
        """The peer has ended: if its node is gone, too, the kernel need not try much longer."""
        with self._lock:
            if self.closed is None and self.sock.family != socket.AF_UNIX:
                set_user_timeout(self.sock, _EXPIRY_SECONDS)

    def close_in_child(self, reason: str) -> None:
        """Mark the connection as closed in a forked child; the parent's goes on."""
        self.closed = self.closed or reason
        # A new one: another thread may have held the lock of the old one.
        self.over = threading.Event()
        self.over.set()

    def _finish(self, reason: str) -> None:
        with self._lock:
            if self.closed is not None:
                return
            if self._borrowed:
                # Whoever reads notices the end of the stream, lets go and comes back here.
                self._ending = reason
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)
                return
            self.closed = reason
            left = [p for p in self._pending if isinstance(p, Flushed)]
            self._pending.clear()
        self._loop.remove(self)
        self.sock.close()
        for flushed in left:
            flushed.set(error=reason)
        try:
            self._on_close(self, reason)
        finally:
            self.over.set()


def set_user_timeout(sock: socket.socket | TlsSocket, seconds: float) -> None:
    """How long sent data may stay unacknowledged before the kernel ends a TCP connection."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def _is_bytes(part: memoryview | Flushed) -> bool:
    return isinstance(part, memoryview)


def _allocate(number: int, size: int) -> memoryview:
    """Memory for a large body, without the cost of zeroing it."""
    try:
        return POOL.get(size)
    except (MemoryError, ValueError) as error:
        raise MemoryError(f"there is no memory for message {number} of {size} bytes") from error
