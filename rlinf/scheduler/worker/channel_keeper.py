"""The keeper: a process that keeps the order of channels; large items never pass through it.

It runs in the I/O thread of its worker, so its state needs no locks. A small item travels inside
the request, as bytes that the keeper does not look into. A large one stays with its producer, who
sends it to the consumer that the keeper names. A consumer that reads a key alone is lent the next
small items together with the one that it asked for.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from rlinf.scheduler.channel.entries import KEPT, Entry, Get, Item, Lent, Put
from rlinf.scheduler.channel.errors import ChannelClosed, ChannelError, KeeperFailed
from rlinf.scheduler.channel.queues import Queues
from rlinf.scheduler.channel.spec import ChannelId
from rlinf.scheduler.collective.endpoint import Handler, PeerLeft
from rlinf.scheduler.errors import ConnectionBroken, PeerLost
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.worker.worker import Worker

_AHEAD = 16
"""Items that a sole consumer of a key is lent."""


@dataclass(slots=True)
class _Request:
    """Who asked, and under which number.

    Attributes:
        connection: to the asker.
        number: the asker's.
        quiet: the channel, if the asker does not wait for the answer.
    """

    connection: Connection
    number: int
    quiet: ChannelId | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Request)
            and self.number == other.number
            and self.connection is other.connection
        )


def _requests(connection: Connection, numbers: Collection[int]) -> Collection[_Request]:
    return [_Request(connection, number) for number in numbers] if numbers else ()


class ChannelKeeper(Worker):
    """Keeps the channels of a run, or its share of them."""

    def __init__(self) -> None:
        super().__init__()
        self._endpoint = self._runtime.endpoint
        self._channels: dict[ChannelId, Queues] = {}
        # By name: the latest channel that has it. Earlier ones are closed.
        self._latest: dict[str, int] = {}
        self._producers: dict[str, Connection] = {}
        self._consumers: dict[str, Connection] = {}
        for kind, handler in {
            "q.open": self._on_open,
            "q.put": self._on_put,
            "q.get": self._on_get,
            "q.take": self._on_take,
            "q.returned": self._on_returned,
            "q.ack": self._on_ack,
            "q.cancel": self._on_cancel,
            "q.return": self._on_return,
            "q.restore": self._on_restore,
            "q.close": self._on_close,
            "q.ask": self._on_ask,
        }.items():
            self._endpoint.on(kind, self._answering(handler))
        self._endpoint.on_end(self._on_end)

    def _answering(self, handler: Handler) -> Handler:
        """Return a mistake of this process must reach whoever waits for the answer."""

        def guarded(who: str, connection: Connection, fields: Any, body: Any) -> None:
            try:
                handler(who, connection, fields, body)
            except Exception as error:
                method = handler.__name__.removeprefix("_on_")
                text = f"{self._runtime.name} failed: {type(error).__name__}: {error}"
                failure = KeeperFailed(text)
                failure.raised = self._runtime.report(method, error, traceback.format_exc())
                number, channel = fields[0], getattr(fields[1], "id", fields[1])
                self.failed(_Request(connection, number, channel), failure)
                raise

        return guarded

    # -- requests (I/O thread) ----------------------------------------------------------------

    def _on_open(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        number, spec = fields
        queues = self._channels.get(spec.id)
        if queues is None and not self._had(spec.id):
            for channel, earlier in list(self._channels.items()):
                if channel[0] == spec.name and earlier.finished:
                    del self._channels[channel]
            self._latest[spec.name] = spec.incarnation
            queues = self._channels[spec.id] = Queues(
                spec.name,
                self,
                spec.maxsize,
                spec.maxbytes,
                spec.redeliver,
                _AHEAD,
                spec.incarnation,
            )
        self._reply(_Request(connection, number), "q.ok", (queues is None or queues.closed,))

    def _had(self, channel: ChannelId) -> bool:
        """Return whether a channel is here, or was and is closed."""
        name, incarnation = channel
        return incarnation <= self._latest.get(name, -1)

    def _on_put(
        self, who: str, connection: Connection, fields: Any, body: list[memoryview]
    ) -> None:
        number, channel, key, weight, nbytes, ticket, wait, quiet = fields
        if ticket is not None:
            self._producers[who] = connection
        life = connection.identity.get("life", "")
        item = Item(None if ticket is not None else body, weight, nbytes, who, key, ticket, life)
        request = _Request(connection, number, channel if quiet else None)
        queues = self._find(channel, request)
        if queues is not None:
            queues.put(Put(request, item), wait)

    def _on_get(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        number, channel, key, target, wait, done = fields
        request = _Request(connection, number)
        self._consumers[who] = connection
        queues = self._find(channel, request)
        if queues is not None:
            get = Get(request, who, target, done=_requests(connection, done))
            queues.get(key, get, wait)

    def _on_take(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        _, channel, key, done = fields
        self._channels[channel].take(who, key, _requests(connection, done))

    def _on_returned(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        _, channel, key = fields
        queues = self._channels.get(channel)
        if queues is not None:
            queues.returned(who, key)

    def _on_ack(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        _, channel, done = fields
        queues = self._channels.get(channel)
        if queues is not None:
            queues.acknowledge(who, _requests(connection, done))
            if queues.finished and channel[1] < self._latest[channel[0]]:
                del self._channels[channel]

    def _on_cancel(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        number, channel, key = fields
        queues = self._channels.get(channel)
        if queues is not None and queues.cancel(key, _Request(connection, number)):
            self._send(connection, "q.cancelled", (number,))

    def _on_return(
        self, who: str, connection: Connection, fields: Any, body: list[memoryview]
    ) -> None:
        number, channel, sizes = fields
        queues = self._channels.get(channel)
        if queues is None:
            return
        bodies, start = [], 0
        for size in sizes:
            if size is None:
                bodies.append(KEPT)
                continue
            bodies.append(body[start : start + size] if size else None)
            start += size
        queues.take_back(who, _Request(connection, number), bodies)

    def _on_restore(
        self, who: str, connection: Connection, fields: Any, body: list[memoryview]
    ) -> None:
        _, channel, key, weight, order = fields
        queues = self._channels.get(channel)
        if queues is not None:
            nbytes = sum(map(len, body))
            queues.restore(who, Item(body, weight, nbytes, who, key, order=order))

    def _on_close(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        number, channel = fields
        request = _Request(connection, number)
        queues = self._channels.get(channel)
        if queues is not None:
            queues.close()
        if self._had(channel):
            self._reply(request, "q.ok", ())
        else:
            self._find(channel, request)

    def _on_ask(self, who: str, connection: Connection, fields: Any, _: Any) -> None:
        number, channel, question, key = fields
        request = _Request(connection, number)
        if question == "channels":
            self._reply(request, "q.ok", (self._all_stats(),))
            return
        queues = self._find(channel, request)
        if queues is None:
            return
        if question == "peek":
            self._show(request, queues.peek(key), connection)
            return
        answers: dict[str, Any] = {
            "qsize": lambda: queues.size(key),
            "full": lambda: queues.full(key),
            "keys": queues.keys,
            "stats": lambda: asdict(queues.stats),
            "state": lambda: {"closed": queues.closed, "broken": queues.broken},
        }
        self._reply(request, "q.ok", (answers[question](),))

    def _find(self, channel: ChannelId, request: _Request) -> Queues | None:
        queues = self._channels.get(channel)
        if queues is None and self._had(channel):
            self.failed(request, ChannelClosed(f"channel {channel[0]!r} is closed"))
        elif queues is None:
            self.failed(request, ChannelError(f"there is no channel {channel[0]!r}"))
        return queues

    def _all_stats(self) -> dict[str, dict[str, Any]]:
        """Return the counters of the latest channel of each name."""
        return {
            name: asdict(queues.stats)
            for (name, incarnation), queues in self._channels.items()
            if incarnation == self._latest[name]
        }

    # -- outcomes -------------------------------------------------------------------------------

    def accepted(self, request: _Request) -> None:
        """An item is in the queue."""
        if not request.quiet:
            self._reply(request, "q.ok", ())

    def granted(self, request: _Request, items: list[Item], ahead: list[Item]) -> None:
        """Send small items, and asks producers to send large ones."""
        entries, buffers = self._entries(items)
        loan: tuple[Any, ...] = ()
        if ahead:
            lent: list[Lent] = [(len(item.body), item.weight, item.order) for item in ahead]
            loan = (items[0].key, lent)
            buffers += [part for item in ahead for part in item.body]
        self._send(request.connection, "q.grant", (request.number, entries, *loan), buffers)
        consumer = request.connection.identity["name"]
        for index, item in enumerate(items):
            if item.ticket is not None:
                self._ship(item, consumer, request.number, index, peek=False)

    def _show(self, request: _Request, items: list[Item], connection: Connection) -> None:
        entries, buffers = self._entries(items)
        self._send(connection, "q.grant", (request.number, entries), buffers)
        for index, item in enumerate(items):
            if item.ticket is not None:
                self._ship(item, connection.identity["name"], request.number, index, peek=True)

    @staticmethod
    def _entries(items: list[Item]) -> tuple[list[Entry], list[Any]]:
        """Return where each item is, and the parts of those that are here."""
        entries: list[Entry] = [
            len(item.body) if item.ticket is None else (item.producer, item.life) for item in items
        ]
        buffers = [part for item in items if item.ticket is None for part in item.body]
        return entries, buffers

    def _producer_of(self, item: Item) -> Connection | None:
        """Return the connection to the process that keeps an item, unless that has ended.

        Another one that has its name since numbers its own items from 1 on, too.
        """
        connection = self._producers.get(item.producer)
        if connection is None or connection.identity.get("life", "") != item.life:
            return None
        return connection

    def _ship(self, item: Item, consumer: str, number: int, index: int, peek: bool) -> None:
        connection = self._producer_of(item)
        if connection is not None:
            self._send(connection, "q.ship", (item.ticket, consumer, number, index, peek))

    def recall(self, channel: ChannelId, consumer: str, key: Any) -> None:
        """Ask a consumer to give up what it was lent."""
        self._send(self._consumers[consumer], "q.recall", (channel, key))

    def failed(self, request: _Request, error: Exception) -> None:
        """Tell the asker why not."""
        self._reply(request, "q.error", (error, request.quiet))

    def dropped(self, item: Item) -> None:
        """A producer need not keep an item any longer."""
        if item.ticket is not None:
            connection = self._producer_of(item)
            if connection is not None:
                self._send(connection, "q.drop", (item.ticket,))

    def _reply(self, request: _Request, kind: str, fields: tuple[Any, ...]) -> None:
        self._send(request.connection, kind, (request.number, *fields))

    def _send(
        self, connection: Connection, kind: str, fields: tuple[Any, ...], buffers: Any = ()
    ) -> None:
        try:
            self._endpoint.answer_raw(connection, kind, fields, buffers)
        except PeerLost:
            # Its end is dealt with in `_on_end`.
            pass

    # -- ends -----------------------------------------------------------------------------------

    def _on_end(self, member: str, error: BaseException) -> None:
        self._producers.pop(member, None)
        self._consumers.pop(member, None)
        broken = isinstance(error, ConnectionBroken)
        for queues in list(self._channels.values()):
            queues.producer_gone(member, broken)
            if isinstance(error, PeerLeft):
                queues.acknowledge(member)
            queues.consumer_gone(member, broken)

    def ping(self) -> bool:
        """Return whether the keeper answers."""
        return True
