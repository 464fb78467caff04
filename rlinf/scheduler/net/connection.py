"""A framed, full-duplex connection: messages of one small meta part and any number of buffers.

Frame: `<u32 meta length><u32 number of buffers><u64 length> * n <meta> <buffers>`.
Sending writes straight from the caller's thread as long as the kernel takes it; only the rest is
left to the I/O thread. Receiving happens in the I/O thread, or in a thread that has nothing to do
but to wait for what this connection brings: it reads the socket itself, which saves the hand-over
from one thread to the other. A large body is received into its own memory, without passing through
the read buffer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf.scheduler.net.doorbell import Doorbell
    from rlinf.scheduler.net.loop import IOLoop

_HEAD = struct.Struct("<II")
_READ_SIZE = 1 << 16
_IOV = 512
_EXPIRY_SECONDS = 1.0
COPY_LIMIT = 1 << 16
READ = select.EPOLLIN | select.EPOLLRDHUP

OnMessage = Callable[["Connection", bytes, list[memoryview]], None]
OnClose = Callable[["Connection", str], None]


class Flushed:
    """Tells when the last byte of a message has been given to the kernel, or that it never will."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: str | None = None
        self._callback: Callable[[str | None], None] | None = None
        self._lock = threading.Lock()

    def set(self, error: str | None = None) -> None:
        """Marks the message as written, or as lost with `error`."""
        with self._lock:
            self._error = error
            self._done.set()
            callback = self._callback
        if callback is not None:
            callback(error)

    def is_set(self) -> bool:
        """Whether the message has been written."""
        return self._done.is_set() and self._error is None

    def then(self, callback: Callable[[str | None], None]) -> None:
        """Calls `callback(error)` when it is known; at once if it is."""
        with self._lock:
            if not self._done.is_set():
                self._callback = callback
                return
        callback(self._error)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits; False if the deadline passed."""
        return self._done.wait(timeout)


class Connection:
    """One authenticated peer.

    Attributes:
        identity: what the peer said of itself in the handshake.
        closed: why the connection ended, or None while it lives.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: IOLoop,
        on_message: OnMessage,
        on_close: OnClose,
        identity: dict[str, Any],
    ):
        self.sock = sock
        self.identity = identity
        self.closed: str | None = None
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
        self._sizes: tuple[int, ...] = ()
        self._meta_size = 0
        # Held by whoever reads: the I/O thread, or a thread that has borrowed the connection.
        self._reading = threading.Lock()
        self._borrowed = False
        self._ending: str | None = None
        sock.setblocking(False)

    def start(self) -> None:
        """Begins to receive."""
        self._loop.add(self)

    def fileno(self) -> int:
        """File descriptor of the socket."""
        return self.sock.fileno()

    # -- sending ------------------------------------------------------------------------------

    def send(
        self, meta: bytes, buffers: Sequence[Any] = (), flushed: Flushed | None = None
    ) -> None:
        """Sends one message; never blocks.

        What the kernel does not take at once is written later by the I/O thread: small remainders
        are
        copied, large buffers are referenced, so their owner must not change them before `flushed`.

        Raises:
            ConnectionError: the connection is closed.
        """
        views = [v for v in (memoryview(b).cast("B") for b in buffers)]
        head = _HEAD.pack(len(meta), len(views))
        if views:
            head += struct.pack(f"<{len(views)}Q", *[v.nbytes for v in views])
        parts = [head + meta] + [v for v in views if v.nbytes]
        total = sum(len(p) for p in parts)
        with self._lock:
            if self.closed is not None:
                raise ConnectionError(self.closed)
            self.sent_bytes += total
            if self._pending:
                rest: list[Any] = parts
            else:
                rest = self._write(parts)
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
        """Writes what the kernel takes; returns what is left."""
        while parts:
            try:
                sent = self.sock.sendmsg(parts[:_IOV])
            except BlockingIOError:
                return parts
            except OSError:
                # The reader notices the broken connection, too, and reports it once for all.
                return []
            while parts and sent >= len(parts[0]):
                sent -= len(parts[0])
                parts = parts[1:]
            if sent:
                parts = [memoryview(parts[0])[sent:], *parts[1:]]
        return parts

    def on_writable(self) -> None:
        """Goes on with what could not be written at once (I/O thread)."""
        done: list[Flushed] = []
        with self._lock:
            while self._pending:
                head = self._pending[0]
                if isinstance(head, Flushed):
                    done.append(head)
                    self._pending.popleft()
                    continue
                try:
                    sent = self.sock.send(head)
                except BlockingIOError:
                    break
                except OSError:
                    break
                if sent == len(head):
                    self._pending.popleft()
                else:
                    self._pending[0] = head[sent:]
            if not self._pending:
                self._watch()
        for flushed in done:
            flushed.set()

    def _watch(self) -> None:
        """Tells the I/O thread what to look for; with the lock held."""
        events = 0 if self._borrowed else READ
        self._loop.modify(self, events | select.EPOLLOUT if self._pending else events)

    @property
    def backlog(self) -> int:
        """Bytes that wait to be written."""
        with self._lock:
            return sum(len(p) for p in self._pending if isinstance(p, memoryview))

    # -- receiving ----------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Reads what is there and hands complete messages to the owner (I/O thread)."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            ending = self._read()
        finally:
            self._reading.release()
        if ending is not None:
            self._finish(ending)

    def read_until(self, done: Callable[[], bool], bell: Doorbell, limit: float | None) -> None:
        """Reads in the calling thread, instead of the I/O thread, until `done()`.

        Returns early when the deadline has passed, when the connection ends, or at once if another
        thread reads it already.

        Args:
            done: whether what the caller waits for has come.
            bell: wakes the caller if that comes from elsewhere.
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
                if bell.wait(self.sock.fileno(), left):
                    self._ending = self._read() or self._ending
        finally:
            with self._lock:
                self._borrowed = False
                self._reading.release()
                self._watch()
            if self._ending is not None:
                self.close(self._ending)

    def _read(self) -> str | None:
        """Reads what is there; returns why the connection ended, if it did."""
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
                    return "the peer closed the connection"
                self.received_bytes += count
                if self._body is not None:
                    self._body_filled += count
                    if self._body_filled == len(self._body):
                        body, self._body = self._body, None
                        self._deliver(body)
                else:
                    self._end += count
                    self._parse()
                if count < len(target):
                    return None
        except BlockingIOError:
            return None
        except OSError as error:
            return f"the connection broke: {error}"

    def _parse(self) -> None:
        while True:
            available = self._end - self._start
            if available < _HEAD.size:
                break
            meta_size, count = _HEAD.unpack_from(self._buffer, self._start)
            header = _HEAD.size + 8 * count
            if header > _READ_SIZE:
                raise ConnectionError(f"the peer sent a header of {header} bytes")
            if available < header:
                break
            sizes = (
                struct.unpack_from(f"<{count}Q", self._buffer, self._start + _HEAD.size)
                if count
                else ()
            )
            body_size = meta_size + sum(sizes)
            self._meta_size, self._sizes = meta_size, sizes
            begin = self._start + header
            have = min(self._end - begin, body_size)
            if have == body_size:
                body = memoryview(bytes(self._view[begin : begin + body_size]))
                self._start = begin + body_size
                self._deliver(body)
                continue
            if header + body_size <= _READ_SIZE:
                break
            self._body = _allocate(body_size)
            self._body[:have] = self._view[begin : begin + have]
            self._body_filled = have
            self._start = self._end = 0
            return
        if self._start:
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _deliver(self, body: memoryview) -> None:
        meta = bytes(body[: self._meta_size])
        buffers, position = [], self._meta_size
        for size in self._sizes:
            buffers.append(body[position : position + size])
            position += size
        try:
            self._on_message(self, meta, buffers)
        except Exception:
            # A bug in one handler must be seen, and must not end the service of all the others.
            traceback.print_exc()

    # -- ending -------------------------------------------------------------------------------

    def close(self, reason: str = "closed by this side") -> None:
        """Ends the connection; the I/O thread reports it through `on_close`."""
        self._loop.call_soon(lambda: self._finish(reason))

    def expire(self) -> None:
        """The peer has ended: if its node is gone, too, the kernel need not try much longer."""
        with self._lock:
            if self.closed is None and self.sock.family != socket.AF_UNIX:
                set_user_timeout(self.sock, _EXPIRY_SECONDS)

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
        self._on_close(self, reason)


def set_user_timeout(sock: socket.socket, seconds: float) -> None:
    """How long sent data may stay unacknowledged before the kernel ends a TCP connection."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def _allocate(size: int) -> memoryview:
    """Memory for a large body, without the cost of zeroing it."""
    import numpy

    return memoryview(numpy.empty(size, dtype=numpy.uint8)).cast("B")
