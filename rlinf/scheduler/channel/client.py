"""A process's side of all its channels: requests to keepers, and what comes back."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.channel.errors import ChannelError, ItemLost
from rlinf.scheduler.channel.outbox import Outbox
from rlinf.scheduler.channel.spec import ChannelSpec, keeper_of
from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.collective.work import Deferred, Work, finished
from rlinf.scheduler.errors import CallCancelled
from rlinf.scheduler.net.connection import Connection

if TYPE_CHECKING:
    from rlinf.scheduler.collective.payload import Payload

INLINE_BYTES = 16 * 1024
"""Items up to this size travel inside the request; larger ones stay with the producer."""


class ChannelClient:
    """Makes requests and collects their outcomes; one per process."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self.outbox = Outbox(endpoint)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._early: dict[int, dict[int, Payload]] = {}
        self._late_errors: dict[str, Exception] = {}
        # By channel and key: the keeper, and the items that it has lent, in order.
        self._ahead: dict[tuple[str, Hashable], tuple[str, deque[Payload]]] = {}
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
        """Starts to put an item."""
        self._raise_late_error(spec.name)
        encoded, _ = self.endpoint.packer.encode(obj)
        limit = self._limit(timeout)
        ticket, parts = None, [encoded.header, *encoded.buffers]
        if encoded.nbytes > INLINE_BYTES:
            ticket = self.outbox.add(encoded, spec.redeliver, limit or 1e9)
            parts = []
        # Without a bound there is nothing to wait for: a refusal is reported by the next request.
        quiet = wait and not spec.maxsize and not spec.maxbytes
        pending = _Pending(
            self, spec, key, lambda: f"room in channel {spec.name!r}", limit, quiet=quiet
        )
        fields = (
            pending.number,
            spec.name,
            key,
            weight,
            encoded.nbytes,
            ticket,
            wait,
            quiet,
        )
        self._request(pending, "q.put", fields, parts)
        if quiet:
            self._settle(pending.number)
            pending.work.finish()
        return pending.work

    def get(
        self,
        spec: ChannelSpec,
        key: Hashable,
        target: float | None,
        wait: bool,
        timeout: float | None,
    ) -> Work:
        """Starts to get an item, or a batch if there is a target weight."""
        self._raise_late_error(spec.name)
        if self._ahead:
            if target is None:
                payload = self._take_ahead(spec, key)
                if payload is not None:
                    return finished(payload)
            else:
                self._return_ahead(spec.name, key)
        pending = _Pending(
            self,
            spec,
            key,
            lambda: f"an item of channel {spec.name!r}, key {key!r}",
            self._limit(timeout),
            batch=target is not None,
        )
        self._request(pending, "q.get", (pending.number, spec.name, key, target, wait))
        return pending.work

    def _take_ahead(self, spec: ChannelSpec, key: Hashable) -> Payload | None:
        """Takes the next item that was lent, and tells the keeper; None if there is none."""
        with self._lock:
            keeper, lent = self._ahead.get((spec.name, key), ("", None))
            if lent is None:
                return None
            # Before a recall can be answered, and before the item is used.
            connection = self.endpoint.connection_to(keeper)
            self.endpoint.answer_raw(connection, "q.take", (0, spec.name, key))
            payload = lent.popleft()
            if not lent:
                del self._ahead[spec.name, key]
            return payload

    def _return_ahead(self, channel: str, key: Hashable) -> None:
        with self._lock:
            keeper, _ = self._ahead.pop((channel, key), ("", None))
            if keeper:
                self.endpoint.post_soon(keeper, "q.returned", (0, channel, key))

    def ask(self, spec: ChannelSpec, question: str, key: Hashable = None) -> Work:
        """Starts a question to the keeper of a key."""
        what = f"the answer of channel {spec.name!r} to {question}"
        pending = _Pending(
            self, spec, key, lambda: what, self._limit(None), batch=question == "peek"
        )
        self._request(pending, "q.ask", (pending.number, spec.name, question, key))
        return pending.work

    def ask_all(self, spec: ChannelSpec, kind: str, *fields: Any) -> list[Work]:
        """Starts a request to each keeper of a channel."""
        works = []
        for keeper in spec.keepers:
            what = f"{keeper} to answer for channel {spec.name!r}"
            pending = _Pending(
                self, spec, None, lambda what=what: what, self._limit(None), keeper=keeper
            )
            self._request(pending, kind, (pending.number, *fields))
            works.append(pending.work)
        return works

    def acknowledge(self, spec: ChannelSpec) -> None:
        """Says that this process is done with all items that it has taken."""
        for keeper in spec.keepers:
            self.endpoint.answer_raw(self.endpoint.connection_to(keeper), "q.ack", (spec.name,))

    def _request(
        self, pending: _Pending, kind: str, fields: tuple[Any, ...], parts: Any = ()
    ) -> None:
        with self._lock:
            self._pending[pending.number] = pending
        try:
            connection = self.endpoint.connection_to(pending.keeper)
            pending.work.source = connection
            self.endpoint.answer_raw(connection, kind, fields, parts)
        except BaseException:
            self._settle(pending.number)
            raise

    def cancel(self, pending: _Pending, abandoned: bool) -> None:
        """Asks the keeper to forget a request; an answer that is on the way still counts."""
        pending.abandoned |= abandoned
        fields = (pending.number, pending.spec.name, pending.key)
        self.endpoint.post_soon(pending.keeper, "q.cancel", fields)

    def give_back(self, pending: _Pending, payloads: list[Payload]) -> None:
        """Returns items that nobody will take here; they go in front of their queue again."""
        sizes = [len(payload.parts) for payload in payloads]
        parts = [part for payload in payloads for part in payload.parts]
        connection = self.endpoint.connection_to(pending.keeper)
        fields = (pending.number, pending.spec.name, sizes)
        self.endpoint.answer_raw(connection, "q.return", fields, [bytes(part) for part in parts])

    def number(self) -> int:
        """A number for a new request."""
        return next(self._numbers)

    def _limit(self, timeout: float | None) -> float | None:
        return self.endpoint.run.timeout("channel") if timeout is None else timeout

    def _settle(self, number: int) -> _Pending | None:
        with self._lock:
            return self._pending.pop(number, None)

    def _raise_late_error(self, channel: str) -> None:
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
        number, error = fields
        pending = self._settle(number)
        if pending is not None:
            pending.work.finish(error=error)
        else:
            # Of a put that did not wait: told now, and raised by the next request of this process.
            print(
                f"{self.endpoint.name}: an item was refused: {error}", file=sys.stderr, flush=True
            )
            self._late_errors[str(error).split("'")[1]] = error

    def _on_grant(self, keeper: str, _: Connection, fields: tuple[Any, ...], body: Any) -> None:
        number, entries, *loan = fields
        with self._lock:
            pending = self._pending.get(number)
            early = self._early.pop(number, {})
        if pending is None:
            return
        if loan:
            self._borrow(pending, keeper, *loan, body)
        pending.expect(entries)
        position = 0
        for index, (count, producer) in enumerate(entries):
            if count >= 0:
                pending.fill(index, self._small(body[position : position + count]))
                position += count
            elif index in early:
                pending.fill(index, early[index])
            elif (error := self.endpoint.ended(producer)) is not None:
                self._lose(pending, producer, error)
                return
        self._finish_if_complete(pending)

    def _borrow(
        self, pending: _Pending, keeper: str, key: Hashable, counts: list[int], body: list[Any]
    ) -> None:
        """Keeps the items that came along, the last ones of the body, for the next requests."""
        channel = pending.spec.name
        lent: deque[Payload] = deque()
        position = len(body) - sum(counts)
        for count in counts:
            lent.append(self._small(body[position : position + count]))
            position += count
        with self._lock:
            self._ahead[channel, key] = keeper, lent
        if pending.abandoned:
            # The item itself goes back to the front of its queue, where these must not overtake it.
            self._return_ahead(channel, key)

    def _on_recall(self, keeper: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        channel, key = fields
        with self._lock:
            self._ahead.pop((channel, key), None)
            self.endpoint.post_soon(keeper, "q.returned", (0, channel, key))

    def _small(self, parts: list[memoryview]) -> Payload:
        from rlinf.scheduler.collective.payload import Payload

        return Payload(None, None, parts, sum(map(len, parts)))  # type: ignore[arg-type]

    def _on_item(
        self, producer: str, _: Connection, fields: tuple[Any, ...], body: Payload
    ) -> None:
        number, index = fields
        with self._lock:
            pending = self._pending.get(number)
            if pending is None or pending.missing is None:
                # The producer was faster than the keeper.
                self._early.setdefault(number, {})[index] = body
                return
        pending.fill(index, body)
        self._finish_if_complete(pending)

    def _finish_if_complete(self, pending: _Pending) -> None:
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
            for place in [p for p, (keeper, _) in self._ahead.items() if keeper == member]:
                del self._ahead[place]
        for pending in pendings:
            if pending.keeper == member:
                self._settle(pending.number)
                pending.work.finish(error=_keeper_ended(pending.spec, error))
            elif pending.missing and member in pending.missing.values():
                self._lose(pending, member, error)

    def _lose(self, pending: _Pending, producer: str, error: BaseException) -> None:
        self._settle(pending.number)
        lost = ItemLost(
            f"an item of channel {pending.spec.name!r} was lost with its producer {producer}"
        )
        lost.__cause__ = error
        pending.work.finish(error=lost)


class _Pending:
    """A request that has not been answered.

    Attributes:
        missing: producer by position of the items that are still on their way; None before the
            keeper has answered.
    """

    def __init__(
        self,
        client: ChannelClient,
        spec: ChannelSpec,
        key: Hashable,
        what: Callable[[], str],
        timeout: float | None,
        *,
        batch: bool = False,
        quiet: bool = False,
        keeper: str | None = None,
    ):
        self.number = client.number()
        self.spec = spec
        self.key = key
        self.keeper = keeper or keeper_of(spec, key)
        self.missing: dict[int, str] | None = None
        self.abandoned = False
        self._client = client
        self._batch = batch
        self._items: list[Any] = []
        self.work = Work(
            what,
            client.endpoint.name,
            timeout,
            lambda abandoned: client.cancel(self, abandoned),
            grace=_GRACE_SECONDS,
        )

    def expect(self, entries: list[tuple[int, str]]) -> None:
        """Notes who sends what."""
        self._items = [None] * len(entries)
        self.missing = {index: producer for index, (_, producer) in enumerate(entries)}

    def fill(self, index: int, payload: Payload) -> None:
        """Takes an item."""
        assert self.missing is not None
        self._items[index] = payload
        self.missing.pop(index, None)

    def deliver(self) -> None:
        """All items are here."""
        items, self._items = self._items, []
        if self.abandoned:
            self._client.endpoint.later(self._client.give_back, self, items)
            self.work.finish(error=CallCancelled("the request was cancelled"))
        else:
            self.work.finish(_Batch(items) if self._batch else items[0])


class _Batch(Deferred):
    """Items that are decoded together when they are taken."""

    def __init__(self, payloads: list[Payload]):
        self.payloads = payloads
        self._values: list[Any] | None = None

    def load(self) -> list[Any]:
        """The items."""
        if self._values is None:
            self._values = [payload.load() for payload in self.payloads]
        return self._values


_GRACE_SECONDS = 5.0


def _keeper_ended(spec: ChannelSpec, error: BaseException) -> ChannelError:
    failure = ChannelError(f"channel {spec.name!r} is gone: its keeper ended ({error})")
    failure.__cause__ = error
    return failure
