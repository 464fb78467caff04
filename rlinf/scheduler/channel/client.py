"""A process's side of all its channels: requests to keepers, and what comes back."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.channel.device_items import DeviceItem, encode_item
from rlinf.scheduler.channel.entries import Lent
from rlinf.scheduler.channel.errors import KeeperLost
from rlinf.scheduler.channel.outbox import Outbox
from rlinf.scheduler.channel.pending import PUT_GRACE, Granted, Pending, copies
from rlinf.scheduler.channel.spec import ChannelId, ChannelSpec, keeper_of
from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.collective.work import Work, finished
from rlinf.scheduler.errors import CallCancelled, PeerLost
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.interrupts import shielded

if TYPE_CHECKING:
    from rlinf.scheduler.collective.payload import Payload

INLINE_BYTES = 16 * 1024
"""Items up to this size travel inside the request; larger ones stay with the producer."""

_Loan = tuple["Payload", float, int]
"""An item that was lent, its weight and its order."""


class ChannelClient:
    """Makes requests and collects their outcomes; one per process."""

    def __init__(self, endpoint: Endpoint):
        self.name = endpoint.name
        self.endpoint = endpoint
        self.outbox = Outbox(endpoint)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._early: dict[int, dict[int, Payload]] = {}
        self._late_errors: dict[ChannelId, Exception] = {}
        # By channel and keeper: requests whose items were taken here since it was told last.
        self._taken: dict[tuple[ChannelId, str], list[int]] = {}
        # By channel and key: the connection to the keeper, and the items that it has lent.
        self._ahead: dict[tuple[ChannelId, Hashable], tuple[Connection, deque[_Loan]]] = {}
        # By name: the latest channel that items were asked of.
        self._reading: dict[str, ChannelSpec] = {}
        for kind, handler in {
            "q.ok": self._on_ok,
            "q.error": self._on_error,
            "q.grant": self._on_grant,
            "q.item": self._on_item,
            "q.cancelled": self._on_cancelled,
            "q.recall": self._on_recall,
        }.items():
            endpoint.on(kind, handler)
        endpoint.on_end(self._on_end)

    # -- requests -------------------------------------------------------------------------------

    def put(
        self,
        spec: ChannelSpec,
        key: Hashable,
        obj: Any,
        weight: float,
        wait: bool,
        timeout: float | None,
    ) -> Work:
        """Start to put an item."""
        keeper = keeper_of(spec, key)
        self.raise_late_error(spec.id)
        item = encode_item(self.endpoint, obj, lambda: self.outbox.device_room)
        limit = self._limit(timeout)
        ticket, parts = None, []
        if isinstance(item, DeviceItem) or item.nbytes > INLINE_BYTES:
            ticket = self.outbox.add(item, keeper, spec.redeliver, limit or 1e9)
        else:
            parts = [item.header, *item.buffers]
        # Without a bound there is nothing to wait for: a refusal is reported by the next request.
        quiet = wait and not spec.maxsize and not spec.maxbytes
        number = self.number()
        fields = (number, spec.id, key, weight, item.nbytes, ticket, wait, quiet)
        try:
            if quiet:
                self.endpoint.submit(self.endpoint.connections.to(keeper), "q.put", fields, parts)
                return finished()
            pending = Pending(
                self,
                spec,
                key,
                keeper,
                lambda: f"room in channel {spec.name!r}",
                limit,
                number=number,
                grace=PUT_GRACE,
            )
            pending.is_put = True
            self._request(pending, "q.put", fields, parts)
            return pending.work
        except BaseException:
            if ticket is not None:
                self.outbox.drop(ticket)
            raise

    def get(
        self,
        spec: ChannelSpec,
        key: Hashable,
        target: float | None,
        wait: bool,
        timeout: float | None,
    ) -> Work:
        """Start to get an item, or a batch if there is a target weight."""
        keeper = keeper_of(spec, key)
        self.raise_late_error(spec.id)
        if self._reading.get(spec.name) is not spec:
            self._read(spec)
        if self._ahead:
            if target is None:
                work = self._take_ahead(spec, key)
                if work is not None:
                    return work
            else:
                self._return_ahead(spec.id, key)
        pending = Pending(
            self,
            spec,
            key,
            keeper,
            lambda: f"an item of channel {spec.name!r}, key {key!r}",
            self._limit(timeout),
            batch=target is not None,
            undo=Granted.give_back,
        )
        fields = (
            pending.number,
            spec.id,
            key,
            target,
            wait,
            self._pop_taken(spec.id, keeper),
        )
        self._request(pending, "q.get", fields)
        return pending.work

    def _read(self, spec: ChannelSpec) -> None:
        """Note a channel that is read; this process is done with closed ones of its name."""
        earlier = self._reading.get(spec.name)
        if earlier is not None and earlier.incarnation > spec.incarnation:
            return
        self._reading[spec.name] = spec
        if earlier is not None and earlier.incarnation < spec.incarnation:
            for keeper in earlier.keepers:
                fields = (0, earlier.id, self._pop_taken(earlier.id, keeper))
                self.endpoint.post_soon(keeper, "q.ack", fields)

    def _take_ahead(self, spec: ChannelSpec, key: Hashable) -> Work | None:
        """Take the next item that was lent, and tell the keeper; None if there is none."""
        channel = spec.id
        with self._lock:
            connection, lent = self._ahead.get((channel, key), (None, None))
            if connection is None or lent is None:
                return None
            done = self._taken.pop((channel, connection.identity["name"]), ())
            try:
                # Before a recall can be answered, and before the item is used.
                self.endpoint.answer_raw(connection, "q.take", (0, channel, key, done))
            except PeerLost:
                # Nothing here may wait for what becomes of the keeper; the next request does.
                del self._ahead[channel, key]
                return None
            payload, *rest = lent.popleft()
            if not lent:
                del self._ahead[channel, key]
        return finished(payload, undo=partial(self._restore, connection, (0, channel, key, *rest)))

    def _restore(self, connection: Connection, fields: tuple[Any, ...], payload: Payload) -> None:
        """Return an item that was lent and taken, but is used by nobody."""
        try:
            self.endpoint.answer_raw(connection, "q.restore", fields, copies(payload))
        except PeerLost:
            # The channel is gone with its keeper.
            return
        self._return_ahead(fields[1], fields[2])

    def _return_ahead(self, channel: ChannelId, key: Hashable) -> None:
        with self._lock:
            connection, _ = self._ahead.pop((channel, key), (None, None))
            if connection is not None:
                self._say_returned(connection, channel, key)

    def _say_returned(self, connection: Connection, channel: ChannelId, key: Hashable) -> None:
        try:
            self.endpoint.answer_raw(connection, "q.returned", (0, channel, key))
        except PeerLost:
            # With the keeper all that it had lent is gone.
            pass

    def ask(self, spec: ChannelSpec, question: str, key: Hashable = None) -> Work:
        """Start a question to the keeper of a key."""
        keeper = keeper_of(spec, key)
        self.raise_late_error(spec.id)
        what = f"the answer of channel {spec.name!r} to {question}"
        pending = Pending(
            self, spec, key, keeper, lambda: what, self._limit(None), batch=question == "peek"
        )
        self._request(pending, "q.ask", (pending.number, spec.id, question, key))
        return pending.work

    def ask_all(self, spec: ChannelSpec, kind: str, *fields: Any) -> list[Work]:
        """Start a request to each keeper of a channel."""
        works = []
        for keeper in spec.keepers:
            what = f"{keeper} to answer for channel {spec.name!r}"
            pending = Pending(self, spec, None, keeper, lambda what=what: what, self._limit(None))
            self._request(pending, kind, (pending.number, *fields))
            works.append(pending.work)
        return works

    def keys(self, spec: ChannelSpec) -> list[Hashable]:
        """Return the keys that are in use."""
        works = self.ask_all(spec, "q.ask", spec.id, "keys", None)
        return [key for work in works for key in work.wait()]

    def stats(self, spec: ChannelSpec) -> dict[str, float]:
        """Return the counters of a channel, summed over its keepers."""
        total: dict[str, float] = {}
        for work in self.ask_all(spec, "q.ask", spec.id, "stats", None):
            for label, value in work.wait().items():
                total[label] = total.get(label, 0) + value
        return total

    def close(self, spec: ChannelSpec) -> None:
        """Close a channel.

        Raises:
            ChannelError: an item that this process had put was refused.
        """
        for work in self.ask_all(spec, "q.close", spec.id):
            work.wait()
        self.raise_late_error(spec.id)

    def acknowledge(self, spec: ChannelSpec) -> None:
        """Say that this process is done with all items that it has taken."""
        for keeper in spec.keepers:
            fields = (0, spec.id, self._pop_taken(spec.id, keeper))
            self.endpoint.submit(self.endpoint.connections.to(keeper), "q.ack", fields)

    def _request(
        self, pending: Pending, kind: str, fields: tuple[Any, ...], parts: Any = ()
    ) -> None:
        with self._lock:
            self._pending[pending.number] = pending
        try:
            connection = self.endpoint.connections.to(pending.keeper)
            pending.work_source = pending.work.source = connection
            self.endpoint.submit(connection, kind, fields, parts)
        except BaseException:
            self._settle(pending.number)
            raise

    def cancel(self, pending: Pending) -> None:
        """Ask the keeper to forget a request; an answer that is on the way still counts."""
        fields = (pending.number, pending.spec.id, pending.key)
        self.endpoint.post_soon(pending.keeper, "q.cancel", fields)

    def note_taken(self, channel: ChannelId, keeper: str, number: int) -> None:
        """The items of a request are in somebody's hands; its keeper is told by the next one."""
        with self._lock:
            self._taken.setdefault((channel, keeper), []).append(number)

    def _pop_taken(self, channel: ChannelId, keeper: str) -> list[int]:
        with self._lock:
            return self._taken.pop((channel, keeper), [])

    def give_back(self, pending: Pending, payloads: list[Payload | None]) -> None:
        """Return items that nobody will take here; they go to where they were in the queue."""
        sizes: list[int | None] = []
        parts: list[bytes] = []
        for index, payload in enumerate(payloads):
            mine = copies(payload)
            sizes.append(None if index in pending.unreached else len(mine))
            parts += mine
        connection, channel = pending.work_source, pending.spec.id
        try:
            fields = (pending.number, channel, sizes)
            self.endpoint.answer_raw(connection, "q.return", fields, parts)
        except PeerLost:
            # The channel is gone with its keeper.
            return
        # What was lent together with them must not overtake them.
        self._return_ahead(channel, pending.key)

    def number(self) -> int:
        """Return a number for a new request."""
        return next(self._numbers)

    def _limit(self, timeout: float | None) -> float | None:
        return self.endpoint.run.timeout("channel") if timeout is None else timeout

    def _settle(self, number: int) -> Pending | None:
        with self._lock:
            return self._pending.pop(number, None)

    def raise_late_error(self, channel: ChannelId) -> None:
        """Raise what became of an earlier put, if it was refused and nobody was told."""
        error = self._late_errors.pop(channel, None) if self._late_errors else None
        if error is not None:
            raise error

    # -- answers (I/O thread) -------------------------------------------------------------------

    def _on_ok(self, keeper: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        number, *value = fields
        pending = self._settle(number)
        if pending is not None:
            pending.work.finish(value[0] if value else None)

    def _on_error(self, keeper: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        number, error, channel = fields
        pending = self._settle(number)
        if pending is None:
            self._note_late_error(channel, error)
            return
        if pending.is_put:
            # Its handle may have been let go.
            unseen = weakref.finalize(pending.work, self._note_if_unseen, pending.spec.id, error)
            unseen.atexit = False
        pending.work.finish(error=error)

    @shielded
    def _note_if_unseen(self, channel: ChannelId, error: Exception) -> None:
        if error.__traceback__ is None:
            self._note_late_error(channel, error)

    def _note_late_error(self, channel: ChannelId, error: Exception) -> None:
        """Of a put that nobody waited for: told now, and raised by the next request."""
        print(f"{self.name}: an item was refused: {error}", file=sys.stderr, flush=True)
        self._late_errors[channel] = error

    def _on_grant(
        self, keeper: str, connection: Connection, fields: tuple[Any, ...], body: Any
    ) -> None:
        number, entries, *loan = fields
        with self._lock:
            pending = self._pending.get(number)
            early = self._early.pop(number, {})
        if pending is None:
            return
        if loan:
            self._borrow(pending, connection, *loan, body)
        pending.expect(entries)
        position = 0
        for index, entry in enumerate(entries):
            if isinstance(entry, int):
                pending.fill(index, self._small(body[position : position + entry]))
                position += entry
            elif index in early:
                pending.fill(index, early[index])
            elif (error := self.endpoint.ended(*entry)) is not None:
                pending.lose(index, error)
            else:
                producer, life = entry
                self.endpoint.watch(producer, life=life)
        self._finish_if_complete(pending)

    def _borrow(
        self,
        pending: Pending,
        connection: Connection,
        key: Hashable,
        loans: list[Lent],
        body: list[Any],
    ) -> None:
        """Keep the items that came along, the last ones of the body, for the next requests."""
        lent: deque[_Loan] = deque()
        position = len(body) - sum(count for count, _, _ in loans)
        for count, weight, order in loans:
            lent.append((self._small(body[position : position + count]), weight, order))
            position += count
        with self._lock:
            self._ahead[pending.spec.id, key] = connection, lent

    def _on_recall(
        self, keeper: str, connection: Connection, fields: tuple[Any, ...], __: Any
    ) -> None:
        channel, key = fields
        with self._lock:
            self._ahead.pop((channel, key), None)
            self._say_returned(connection, channel, key)

    def _small(self, parts: list[memoryview]) -> Payload:
        from rlinf.scheduler.collective.payload import Payload

        return Payload(None, None, parts, sum(map(len, parts)))  # type: ignore[arg-type]

    def _on_item(
        self, producer: str, _: Connection, fields: tuple[Any, ...], body: Payload
    ) -> None:
        number, index, body.bound = fields
        with self._lock:
            pending = self._pending.get(number)
            if pending is None or pending.missing is None:
                # The producer was faster than the keeper.
                self._early.setdefault(number, {})[index] = body
                return
        pending.fill(index, body)
        self._finish_if_complete(pending)

    def _finish_if_complete(self, pending: Pending) -> None:
        if pending.missing:
            return
        if self._settle(pending.number) is not None:
            pending.deliver()

    def _on_cancelled(self, keeper: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        pending = self._settle(fields[0])
        if pending is not None:
            pending.work.finish(error=CallCancelled("the request was cancelled"))

    # -- ends -----------------------------------------------------------------------------------

    def _on_end(self, member: str, error: BaseException) -> None:
        with self._lock:
            pendings = list(self._pending.values())
            for place, (connection, _) in list(self._ahead.items()):
                if connection.identity["name"] == member:
                    del self._ahead[place]
        for pending in pendings:
            if pending.keeper == member:
                self._settle(pending.number)
                pending.work.finish(error=_keeper_ended(pending.spec, error))
            elif pending.missing:
                for index, (producer, _) in list(pending.missing.items()):
                    if producer == member:
                        pending.lose(index, error)
                self._finish_if_complete(pending)


def _keeper_ended(spec: ChannelSpec, error: BaseException) -> KeeperLost:
    failure = KeeperLost(f"channel {spec.name!r} is gone: its keeper ended ({error})")
    failure.__cause__ = error
    return failure
