"""Point to point: ordered messages between two workers, with a bounded number on the way."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.collective.work import Work, finished
from rlinf.scheduler.errors import CallCancelled, PeerLost
from rlinf.scheduler.net.connection import COPY_LIMIT, Connection
from rlinf.scheduler.net.flushed import Flushed

if TYPE_CHECKING:
    from rlinf.scheduler.collective.payload import PackedMessage, Payload

MAX_ITEMS_ON_THE_WAY = 4096
MAX_BYTES_ON_THE_WAY = 256 << 20
_CREDIT_ITEMS = 256
_CREDIT_BYTES = 32 << 20

Box = tuple[str, str]
"""Sender and tag: messages of one box arrive in the order in which they were sent."""


@dataclass
class Counter:
    """What has passed between this process and one peer, in one direction."""

    items: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0


@dataclass
class _Window:
    """What a receiver has not consumed yet, and what waits for it to do so."""

    items: int = 0
    bytes: int = 0
    pending: deque[tuple[int, Callable[[], None], Work, str]] = field(default_factory=deque)
    draining: bool = False

    def room(self, nbytes: int) -> bool:
        if not self.items:
            return True
        return self.items < MAX_ITEMS_ON_THE_WAY and self.bytes + nbytes <= MAX_BYTES_ON_THE_WAY


@dataclass
class _Queue:
    """Messages that nobody has asked for, or askers without a message; never both."""

    messages: deque[tuple[Payload, bool]] = field(default_factory=deque)
    askers: deque[Work] = field(default_factory=deque)


class Mailbox:
    """Sends and receives objects by the name of the peer."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._queues: dict[Box, _Queue] = {}
        self._windows: dict[str, _Window] = {}
        self._owed: dict[str, list[int]] = {}
        self._eager: dict[str, int] = {}
        self._abandoned: tuple[str, ...] = ()
        self.sent: dict[str, Counter] = {}
        self.received: dict[str, Counter] = {}
        endpoint.on("mail", self._on_mail)
        endpoint.on("credit", self._on_credit)
        endpoint.on("settle", self._on_settle)
        endpoint.on_end(self._on_end)

    # -- sending ------------------------------------------------------------------------------

    def send(self, peer: str, obj: Any, tag: str = "", keep: bool = True) -> Work:
        """Start to send an object.

        Args:
            peer: name of the receiver.
            obj: what to send.
            tag: stream that it belongs to.
            keep: the object may change as soon as this returns on the device, and once the work is
                done on the host; otherwise it must not change before the work is done, which for
                tensors on a shared GPU is when the receiver has copied them.
        """
        if tag.startswith(self._abandoned):
            raise _cancelled(tag)
        endpoint = self._endpoint
        endpoint.connections.to(peer)
        encoded, tokens = endpoint.encode_for(peer, obj, copy=keep)
        limit = endpoint.run.timeout("recv")
        work = Work(f"{peer} to take what was sent to it", endpoint.name, limit)

        def go() -> None:
            packed = endpoint.pack_for(peer, encoded, limit or 1e9)
            self._post(peer, tag, packed, work, [] if keep else tokens)

        nbytes = encoded.nbytes
        with self._lock:
            window = self._windows.setdefault(peer, _Window())
            free = not window.pending and not window.draining and window.room(nbytes)
            if free:
                window.items += 1
                window.bytes += nbytes
            else:
                window.pending.append((nbytes, go, work, tag))
        if free:
            self._go(peer, nbytes, go, work)
        else:
            # The receiver settles its debts in batches; now somebody waits for that.
            endpoint.post_soon(peer, "settle", ())
        return work

    def _go(self, peer: str, nbytes: int, go: Callable[[], None], work: Work) -> None:
        """Send what has its place in the window; the place is free again if that fails."""
        try:
            go()
        except BaseException as error:
            self._credit(peer, 1, nbytes)
            if not isinstance(error, PeerLost):
                raise
            work.finish(error=error)

    def _post(
        self, peer: str, tag: str, packed: PackedMessage, work: Work, tokens: list[int]
    ) -> None:
        # What fits here is copied by the connection if the kernel does not take it at once.
        flushed = Flushed() if sum(map(len, packed.buffers)) > COPY_LIMIT else None
        connection = self._endpoint.post(peer, "mail", (tag,), packed, flushed)
        self._count(self.sent, peer, 1, packed.nbytes)
        if tokens:
            self._endpoint.packer.when_released(tokens, work.finish)
        elif flushed is None or flushed.is_set():
            work.finish()
        else:
            flushed.then(partial(self._flushed, connection, work))

    def _flushed(self, connection: Connection, work: Work, error: str | None) -> None:
        if error is None:
            work.finish()
        else:
            self._endpoint.when_lost(connection, error, lambda why: work.finish(error=why))

    def _on_credit(self, peer: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        self._credit(peer, *fields)

    def _credit(self, peer: str, items: int, nbytes: int) -> None:
        with self._lock:
            window = self._windows.get(peer)
            if window is None:
                return
            window.items -= items
            window.bytes -= nbytes
            waiting = bool(window.pending) and not window.draining
            window.draining |= waiting
        if waiting:
            # Preparing a message may wait for memory, which only the I/O thread can free.
            self._endpoint.later(self._drain, peer)

    def _drain(self, peer: str) -> None:
        """Send what waited, in order; one thread at a time, and before anything newer."""
        while True:
            with self._lock:
                window = self._windows.get(peer)
                if window is None:
                    return
                if not window.pending or not window.room(window.pending[0][0]):
                    window.draining = False
                    return
                nbytes, go, work, _ = window.pending.popleft()
                window.items += 1
                window.bytes += nbytes
            try:
                self._go(peer, nbytes, go, work)
            except Exception as error:
                work.finish(error=error)

    def _on_settle(self, sender: str, connection: Connection, _: tuple[Any, ...], __: Any) -> None:
        with self._lock:
            self._eager[sender] = _CREDIT_ITEMS
        self._pay(sender, connection)

    # -- receiving ----------------------------------------------------------------------------

    def recv(self, peer: str, tag: str = "", timeout: float | None = None) -> Work:
        """Start to receive the next object of a peer.

        Raises:
            SchedulerError: this is a forked child.
        """
        # Before any lock: in a forked child another thread may hold it for ever.
        self._endpoint.connections.check_process()
        box = (peer, tag)
        with self._lock:
            if tag.startswith(self._abandoned):
                return finished(error=_cancelled(tag))
            queue = self._queues.setdefault(box, _Queue())
            if queue.messages:
                payload, charged = queue.messages.popleft()
                self._forget_if_empty(box)
            else:
                payload = None
                work = Work(
                    f"a message from {peer}" + (f" ({tag})" if tag else ""),
                    self._endpoint.name,
                    self._endpoint.run.timeout("recv") if timeout is None else timeout,
                    cancel=lambda: self._give_up(box, work),
                    source=self._endpoint.connections.incoming(peer),
                    undo=partial(self._bring_back, box),
                )
                queue.askers.append(work)
        if payload is not None:
            self._consumed(peer, payload, charged)
            return finished(payload, undo=partial(self._bring_back, box))
        try:
            error = self._endpoint.lost(peer)
        except BaseException:
            work.abandon()
            raise
        if error is not None:
            self._on_end(peer, error)
        return work

    def _give_up(self, box: Box, work: Work) -> None:
        with self._lock:
            queue = self._queues.get(box)
            waiting = queue is not None and work in queue.askers
            if queue is not None and waiting:
                queue.askers.remove(work)
                self._forget_if_empty(box)
        if waiting:
            work.finish(error=CallCancelled("the receive was cancelled"))

    def _bring_back(self, box: Box, payload: Payload) -> None:
        """A message that was received, but by nobody, is the next one again."""
        self._count(self.received, box[0], -1, -payload.nbytes)
        self.deliver(*box, payload, charged=False, first=True)

    def _on_mail(
        self, sender: str, _: Connection, fields: tuple[Any, ...], payload: Payload | None
    ) -> None:
        assert payload is not None
        self.deliver(sender, fields[0], payload)

    def deliver(
        self, sender: str, tag: str, payload: Payload, charged: bool = True, first: bool = False
    ) -> None:
        """Put a message into its box.

        Args:
            sender: who sent it.
            tag: stream that it belongs to.
            payload: the message.
            charged: whether the sender counts it as on the way until it is consumed.
            first: put it before those that nobody has asked for.
        """
        box = (sender, tag)
        with self._lock:
            dropped = tag.startswith(self._abandoned)
            queue = _Queue() if dropped else self._queues.setdefault(box, _Queue())
            work = queue.askers.popleft() if queue.askers else None
            if work is not None:
                self._forget_if_empty(box)
            elif first:
                queue.messages.appendleft((payload, charged))
            else:
                queue.messages.append((payload, charged))
        if work is not None or dropped:
            self._consumed(sender, payload, charged)
        if work is not None:
            work.finish(payload)

    def abandon(self, prefix: str) -> None:
        """Give up all streams whose tag begins so, for ever.

        Who waits in one is told that it was cancelled, and so is who asks later. What was sent in
        one is dropped, also what has yet to come.
        """
        with self._lock:
            self._abandoned += (prefix,)
            boxes = {box: q for box, q in self._queues.items() if box[1].startswith(prefix)}
            for box in boxes:
                del self._queues[box]
            waiting = [(work, box[1]) for box, queue in boxes.items() for work in queue.askers]
            for window in self._windows.values():
                held = [entry for entry in window.pending if entry[3].startswith(prefix)]
                for entry in held:
                    window.pending.remove(entry)
                waiting += [(work, tag) for _, _, work, tag in held]
        for (sender, _), queue in boxes.items():
            for payload, charged in queue.messages:
                self._consumed(sender, payload, charged)
        for work, tag in waiting:
            work.finish(error=_cancelled(tag))

    def _consumed(self, sender: str, payload: Payload, charged: bool) -> None:
        self._count(self.received, sender, 1, payload.nbytes)
        if not charged:
            return
        with self._lock:
            owed = self._owed.setdefault(sender, [0, 0])
            owed[0] += 1
            owed[1] += payload.nbytes
            eager = self._eager.get(sender, 0)
            if eager:
                self._eager[sender] = eager - 1
            due = eager > 0 or owed[0] >= _CREDIT_ITEMS or owed[1] >= _CREDIT_BYTES
        if due:
            self._pay(sender, payload.connection)

    def _pay(self, sender: str, connection: Connection) -> None:
        """Tell a sender what has been consumed since it was told last."""
        with self._lock:
            owed = self._owed.pop(sender, None)
        if owed is not None:
            try:
                self._endpoint.answer(connection, "credit", tuple(owed))
            except PeerLost:
                # A sender that has ended needs no credit.
                pass

    def _forget_if_empty(self, box: Box) -> None:
        queue = self._queues[box]
        if not queue.messages and not queue.askers:
            del self._queues[box]

    # -- ends and counts ----------------------------------------------------------------------

    def _on_end(self, peer: str, error: BaseException) -> None:
        """Fail what waits for a peer that has ended; what it had sent can still be received."""
        with self._lock:
            lost = [w for box, q in self._queues.items() if box[0] == peer for w in q.askers]
            for box in [b for b in self._queues if b[0] == peer]:
                self._queues[box].askers.clear()
                self._forget_if_empty(box)
            window = self._windows.pop(peer, None)
            self._owed.pop(peer, None)
            self._eager.pop(peer, None)
        for work in lost:
            work.finish(error=error)
        for _, _, work, _ in window.pending if window else ():
            work.finish(error=error)

    def _count(self, counters: dict[str, Counter], peer: str, items: int, nbytes: int) -> None:
        counter = counters.get(peer)
        if counter is None:
            counter = counters.setdefault(peer, Counter())
        counter.items += items
        counter.bytes += nbytes

    def traffic(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return what was sent and received so far, by peer."""
        return {
            "sent": {peer: asdict(counter) for peer, counter in list(self.sent.items())},
            "received": {peer: asdict(counter) for peer, counter in list(self.received.items())},
        }

    def waited(self, peer: str, begin: float) -> None:
        """Add the time since `begin` to what was waited for a peer."""
        counter = self.received.setdefault(peer, Counter())
        counter.wait_seconds += time.perf_counter() - begin


def _cancelled(tag: str) -> CallCancelled:
    return CallCancelled(f"the exchange {tag!r} was given up")
